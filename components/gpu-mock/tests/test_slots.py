"""Whose place in the shared state it is: callers that stop, processes that become another program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from cuda.bindings.driver import CUprocessState, CUresult

from mock_node import MockNode, MockProcess, lock_args, sanitizer_environment, state_of

EXEC_TWICE = """
import os, sys
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
assert driver.cuMemAlloc(1 << 20)[0] == 0, "the memory of the program before is still taken"
if len(sys.argv) > 1:
    print("ready", flush=True)
    sys.stdin.read()
os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], "again"])
"""


@pytest.fixture
def agent(node: MockNode) -> MockProcess:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    return agent


def test_caller_that_is_stopped_keeps_no_other_caller_waiting(node: MockNode, agent: MockProcess) -> None:
    target, caller = node.process(), node.process(device=None)
    caller.ok.cuInit(0)
    node.inject("slow", "lock=0.2")
    locking = caller.begin("cuCheckpointProcessLock", target.pid, lock_args(5000))
    assert locking.is_blocked_for(0.05)
    caller.signal(signal.SIGSTOP)  # its lock is under way, and it cannot fetch the answer
    while state_of(agent, target.pid) != CUprocessState.CU_PROCESS_STATE_LOCKED:
        pass
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    agent.ok.cuCheckpointProcessRestore(target.pid, None)
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    caller.signal(signal.SIGCONT)
    assert locking.result() == (CUresult.CUDA_SUCCESS,)


def test_answer_of_an_earlier_caller_is_never_taken_for_ones_own(node: MockNode) -> None:
    """Short-lived callers use one slot after the other, and count their requests from the same number."""
    target = node.process()
    for number in range(6):
        caller = node.process(device=None)
        caller.ok.cuInit(0)
        before, after = (0, 1) if number % 2 == 0 else (1, 0)
        assert int(state_of(caller, target.pid)) == before
        if number % 2 == 0:
            caller.ok.cuCheckpointProcessLock(target.pid, None)
        else:
            caller.ok.cuCheckpointProcessUnlock(target.pid, None)
        assert int(state_of(caller, target.pid)) == after
        caller.kill()


def test_program_that_a_process_becomes_has_nothing_of_the_one_before(node: MockNode) -> None:
    environment = {**os.environ, **node.environment, **sanitizer_environment()}
    command = [sys.executable, "-c", EXEC_TWICE]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        shown = json.loads(node.control("show", "--json"))
        worker.kill()
    assert [(process["pid"], process["used_bytes"]) for process in shown["processes"]] == [(worker.pid, [1 << 20])]
