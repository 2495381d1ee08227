"""A process killed right before each of its stores to the shared state, one after the other, until the step is through.

Kills at random moments (test_kills.py) hardly ever hit the few instructions between two stores; these hit all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUprocessState, CUresult

from kernels import Kernels, ptx_file
from mock_node import REPLY_TIMEOUT_S, MockNode, MockProcess, lock_args

MIB = 1 << 20
SIZE = 4 * MIB
SUCCESS = CUresult.CUDA_SUCCESS
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE
MOST_STORES = 2000  # a step that makes more is not the step that is meant


class Worker:
    """stress.c in one mode, told to kill itself before its n-th store."""

    def __init__(self, node: MockNode, mode: str, kill_before: int, *arguments: str) -> None:
        environment = {**node.environment, "GPU_MOCK_PTX": str(ptx_file()), "STRESS_KILL_BEFORE": str(kill_before)}
        command = [os.environ["GPU_MOCK_STRESS"], mode, *arguments]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, close_fds=False)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def was_killed(self) -> bool:
        """Wait for its end: True if it died before a store, False if it came through."""
        try:
            status = self._process.wait(REPLY_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
        assert status in (0, -signal.SIGKILL)
        return status != 0

    def finish(self) -> bool:
        """Tell it to end; returns was_killed()."""
        self._process.terminate()
        return self.was_killed()


@pytest.fixture
def node(new_node: Callable[..., MockNode]) -> MockNode:
    return new_node("1x4MiB")


@pytest.fixture
def witness(node: MockNode) -> MockProcess:
    """Lives through all kills; it must never see anything of the dead."""
    return node.process()


def look(node: MockNode, witness: MockProcess, kernels: Kernels) -> None:
    node.check()
    witness.ok.cuMemFree(witness.ok.cuMemAlloc(SIZE))
    kernels.busy(1)
    witness.ok.cuCtxSynchronize()


@pytest.mark.parametrize("mode", ["init", "alloc", "copy", "launch", "context", "inject"])
def test_killed_before_each_store_of(node: MockNode, witness: MockProcess, mode: str) -> None:
    kernels = Kernels(witness)
    for number in range(1, MOST_STORES):
        if not Worker(node, mode, number, "1").was_killed():
            break
        if mode == "inject":
            node.clear()  # a fault that was complete before the kill
        look(node, witness, kernels)
    assert 3 < number < MOST_STORES - 1, "the step made no stores, or does not end"


WAY_TO = {"lock": [], "checkpoint": ["lock"], "restore": ["lock", "checkpoint"], "unlock": ["lock"]}
CALLS = {
    "lock": "cuCheckpointProcessLock", "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore", "unlock": "cuCheckpointProcessUnlock",
}  # fmt: skip


def ask(agent: MockProcess, call: str, pid: int) -> CUresult:
    return CUresult(getattr(agent.code, CALLS[call])(pid, None))


def test_target_killed_before_each_of_its_stores(node: MockNode, witness: MockProcess) -> None:
    """Through a whole round of lock, checkpoint, restore and unlock."""
    kernels = Kernels(witness)
    ends: dict[str, int] = {}
    for number in range(1, MOST_STORES):
        target = Worker(node, "victim", number)
        for call in CALLS:
            if ask(witness, call, target.pid) != SUCCESS:
                ends[call] = ends.get(call, 0) + 1
                assert witness.code.cuCheckpointProcessGetState(target.pid) == INVALID_VALUE
                break
        if not target.finish():
            break
        look(node, witness, kernels)
    assert number < MOST_STORES - 1
    assert set(ends) == set(CALLS)  # it was killed in each of them


@pytest.mark.parametrize("call", CALLS)
def test_caller_killed_before_each_of_its_stores(node: MockNode, witness: MockProcess, call: str) -> None:
    """The target lives through all of them, with its contents; somebody else ends what the dead caller began."""
    kernels = Kernels(witness)
    for number in range(1, MOST_STORES):
        target = Worker(node, "victim", 0)
        for step in WAY_TO[call]:
            assert ask(witness, step, target.pid) == SUCCESS
        was_killed = Worker(node, call, number, "1", str(target.pid)).was_killed()
        bring_to_running(witness, target.pid)
        assert not target.finish()
        look(node, witness, kernels)
        if not was_killed:
            break
    assert 3 < number < MOST_STORES - 1


def bring_to_running(agent: MockProcess, pid: int) -> None:
    """From whatever state; the dead caller's request may still be under way."""
    deadline = time.monotonic() + REPLY_TIMEOUT_S
    while True:
        state = CUprocessState(int(agent.ok.cuCheckpointProcessGetState(pid)))
        if state == CUprocessState.CU_PROCESS_STATE_CHECKPOINTED:
            ask(agent, "restore", pid)
        elif state == CUprocessState.CU_PROCESS_STATE_LOCKED:
            ask(agent, "unlock", pid)
        elif agent.code.cuCheckpointProcessLock(pid, lock_args(5000)) == SUCCESS:
            assert ask(agent, "unlock", pid) == SUCCESS
            return
        assert time.monotonic() < deadline
