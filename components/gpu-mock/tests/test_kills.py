"""Any process may be killed at any moment: afterwards the state is consistent, its memory is free, and nobody is stuck.

GPU_MOCK_KILLS says how often each kind is killed (200 unless set).
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cuda.bindings.driver import CUresult

from kernels import Kernels, ptx_file
from mock_node import MockNode, MockProcess, lock_args

MIB = 1 << 20
KILLS = int(os.environ.get("GPU_MOCK_KILLS", "200"))
LONGEST_LIFE_S = 0.004  # after "ready"; a step of any kind takes from 10 µs to 1 ms
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


def start(node: MockNode, *arguments: str) -> subprocess.Popen[bytes]:
    command = [os.environ["GPU_MOCK_STRESS"], *arguments]
    environment = {**node.environment, "GPU_MOCK_PTX": str(ptx_file())}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, close_fds=False)


def wait_until_ready(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n", f"the worker ended with status {worker.wait()}"


def kill(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL; a worker that has ended by itself has met a result that should not be."""
    assert worker.poll() is None, f"the worker ended by itself with status {worker.returncode}"
    worker.kill()
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()


@contextmanager
def running(node: MockNode, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker beside the ones that are killed; at the end it must be alive, and end in order when told to."""
    worker = start(node, *arguments)
    try:
        wait_until_ready(worker)
        yield worker
        assert worker.poll() is None
        worker.terminate()
        assert worker.wait(timeout=20) == 0, "the worker beside the killed ones failed or is stuck"
    finally:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


def prove_that_nothing_is_stuck(node: MockNode, size: int) -> None:
    """A fresh process can have the whole device, run on it, and be saved and restored."""
    node.check()
    fresh, agent = node.process(), node.process(device=None)
    agent.ok.cuInit(0)
    pointer = fresh.ok.cuMemAlloc(size)
    fresh.ok.cuMemsetD8(pointer, 0x42, size)
    Kernels(fresh).busy(10)
    agent.ok.cuCheckpointProcessLock(fresh.pid, lock_args(5000))
    agent.ok.cuCheckpointProcessCheckpoint(fresh.pid, None)
    other = node.process()
    other.ok.cuMemFree(other.ok.cuMemAlloc(size))
    agent.ok.cuCheckpointProcessRestore(fresh.pid, None)
    agent.ok.cuCheckpointProcessUnlock(fresh.pid, None)
    back = fresh.host(size)
    fresh.ok.cuMemcpyDtoH(back, pointer, size)
    assert fresh.peek(back, size) == b"\x42" * size
    node.check()


def witness(node: MockNode, size: int) -> Callable[[], None]:
    """A check for after each kill, by a process that lives through all of them: the dead one's memory is back."""
    process = node.process()

    def look() -> None:
        process.ok.cuMemFree(process.ok.cuMemAlloc(size))

    return look


@pytest.mark.parametrize("mode", ["init", "alloc", "copy", "launch", "context", "target"])
def test_killed_in_the_middle_of(new_node: Callable[..., MockNode], mode: str) -> None:
    node = new_node("1x4MiB")
    look = witness(node, 4 * MIB)
    chance = random.Random(mode)
    for number in range(KILLS):
        worker = start(node, mode)
        if mode == "init":
            time.sleep(chance.uniform(0, LONGEST_LIFE_S))
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()
        else:
            wait_until_ready(worker)
            time.sleep(chance.uniform(0, LONGEST_LIFE_S))
            kill(worker)
        look()
        if number % 20 == 19:
            node.check()
    prove_that_nothing_is_stuck(node, 4 * MIB)


def test_killed_beside_processes_that_go_on(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x4MiB")
    chance = random.Random("beside")
    with running(node, "alloc"), running(node, "launch"):
        for number in range(KILLS):
            worker = start(node, ("alloc", "copy", "launch", "context")[number % 4])
            wait_until_ready(worker)
            time.sleep(chance.uniform(0, LONGEST_LIFE_S))
            kill(worker)
    prove_that_nothing_is_stuck(node, 4 * MIB)


# ---- lock, checkpoint, restore: the target, or the one who asks, is killed

STEPS = ["lock", "checkpoint", "restore"]
CALLS = {
    "lock": "cuCheckpointProcessLock", "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
}  # fmt: skip


def begin_step(node: MockNode, agent: MockProcess, pid: int, step: str) -> None:
    """Bring the process to where the step can begin."""
    for before in STEPS[: STEPS.index(step)]:
        getattr(agent.ok, CALLS[before])(pid, None)


@pytest.mark.parametrize("step", STEPS)
def test_target_killed_in_the_middle_of(new_node: Callable[..., MockNode], step: str) -> None:
    node = new_node("1x4MiB")
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    look = witness(node, 4 * MIB)
    chance = random.Random(step)
    codes = set()
    for number in range(KILLS):
        worker = start(node, "target")
        wait_until_ready(worker)
        begin_step(node, agent, worker.pid, step)
        pending = agent.begin(CALLS[step], worker.pid, None)
        time.sleep(chance.uniform(0, LONGEST_LIFE_S / 2))
        kill(worker)
        codes.add(pending.result()[0])
        assert agent.code.cuCheckpointProcessGetState(worker.pid) == INVALID_VALUE
        look()
        if number % 20 == 19:
            node.check()
    assert CUresult.CUDA_SUCCESS in codes or KILLS < 50  # some were killed after the step,
    assert len(codes) > 1 or KILLS < 50  # some before its end
    prove_that_nothing_is_stuck(node, 4 * MIB)


@pytest.mark.parametrize("mode", ["cycle", "query"])
def test_caller_killed_while_the_target_goes_on(new_node: Callable[..., MockNode], mode: str) -> None:
    """A killed caller's cycle is ended by the next one; the target checks its contents all the while."""
    node = new_node("1x4MiB")
    chance = random.Random(mode)
    with running(node, "target") as target:
        for _ in range(KILLS):
            caller = start(node, mode, "0", str(target.pid))
            wait_until_ready(caller)
            time.sleep(chance.uniform(0, LONGEST_LIFE_S))
            kill(caller)
        finish_what_was_left(node, target.pid)
    prove_that_nothing_is_stuck(node, 4 * MIB)


def finish_what_was_left(node: MockNode, pid: int) -> None:
    """Unlock a process whose callers were killed; the last call of the last of them may still be under way."""
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    deadline = time.monotonic() + 20
    while True:
        state = int(agent.ok.cuCheckpointProcessGetState(pid))
        if state == 0 and agent.code.cuCheckpointProcessLock(pid, lock_args(5000)) == CUresult.CUDA_SUCCESS:
            agent.ok.cuCheckpointProcessUnlock(pid, None)
            return
        if state == 1:
            agent.cuCheckpointProcessUnlock(pid, None)
        if state == 2:
            agent.cuCheckpointProcessRestore(pid, None)
        assert time.monotonic() < deadline
