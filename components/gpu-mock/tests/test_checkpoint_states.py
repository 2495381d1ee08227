"""The state machine of the checkpoint calls: RUNNING, LOCKED, CHECKPOINTED, FAILED, and what every order returns.

Documented in the CUDA driver API, "CUDA Checkpointing"; the docstrings of cuda-bindings repeat it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUprocessState, CUresult

from kernels import Kernels
from mock_node import REPLY_TIMEOUT_S, MockNode, MockProcess, ProcessEnded, lock_args, state_of

RUNNING = CUprocessState.CU_PROCESS_STATE_RUNNING
LOCKED = CUprocessState.CU_PROCESS_STATE_LOCKED
CHECKPOINTED = CUprocessState.CU_PROCESS_STATE_CHECKPOINTED
SUCCESS = CUresult.CUDA_SUCCESS
ILLEGAL_STATE = CUresult.CUDA_ERROR_ILLEGAL_STATE
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE
NOT_READY = CUresult.CUDA_ERROR_NOT_READY

CALLS = {
    "lock": "cuCheckpointProcessLock",
    "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
    "unlock": "cuCheckpointProcessUnlock",
}
WAY_TO = {RUNNING: [], LOCKED: ["lock"], CHECKPOINTED: ["lock", "checkpoint"]}
ALLOWED = {
    (RUNNING, "lock"): LOCKED,
    (LOCKED, "checkpoint"): CHECKPOINTED,
    (LOCKED, "unlock"): RUNNING,
    (CHECKPOINTED, "restore"): LOCKED,
}


def ask(agent: MockProcess, call: str, pid: int) -> CUresult:
    return CUresult(getattr(agent.code, CALLS[call])(pid, None))


@pytest.fixture
def agent(node: MockNode) -> MockProcess:
    """A process that asks for the others' states and owns nothing."""
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    return agent


@pytest.mark.parametrize("state", WAY_TO, ids=lambda state: state.name.removeprefix("CU_PROCESS_STATE_"))
@pytest.mark.parametrize("call", CALLS)
def test_every_call_in_every_state(node: MockNode, agent: MockProcess, state: CUprocessState, call: str) -> None:
    target = node.process()
    for step in WAY_TO[state]:
        assert ask(agent, step, target.pid) == SUCCESS
    assert state_of(agent, target.pid) == state
    following = ALLOWED.get((state, call))
    assert ask(agent, call, target.pid) == (ILLEGAL_STATE if following is None else SUCCESS)
    assert state_of(agent, target.pid) == (state if following is None else following)


def test_whole_round_many_times(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    pointer = target.ok.cuMemAlloc(64 << 10)
    for number in range(1, 40):
        target.ok.cuMemsetD8(pointer, number, 64 << 10)
        for call, state in (("lock", LOCKED), ("checkpoint", CHECKPOINTED), ("restore", LOCKED), ("unlock", RUNNING)):
            assert ask(agent, call, target.pid) == SUCCESS
            assert state_of(agent, target.pid) == state
        back = target.host(64 << 10)
        target.ok.cuMemcpyDtoH(back, pointer, 64 << 10)
        assert target.peek(back, 64 << 10) == bytes([number]) * (64 << 10)


@pytest.mark.parametrize("kind", ["nobody", "no driver", "own child not initialised", "zero", "negative", "dead"])
def test_unknown_pid_is_an_invalid_value(node: MockNode, agent: MockProcess, kind: str) -> None:
    dead = node.process()
    dead.kill()
    pid = {
        "nobody": (1 << 22) - 3, "no driver": os.getpid(), "own child not initialised": node.process(device=None).pid,
        "zero": 0, "negative": -1, "dead": dead.pid,
    }[kind]  # fmt: skip
    assert agent.code.cuCheckpointProcessGetState(pid) == INVALID_VALUE
    assert agent.code.cuCheckpointProcessGetRestoreThreadId(pid) == INVALID_VALUE
    for call in CALLS:
        assert ask(agent, call, pid) == INVALID_VALUE


def test_only_restore_needs_an_initialised_caller(node: MockNode) -> None:
    """Documented: "CUDA process restore requires persistence mode to be enabled or cuInit to have been called"."""
    target, caller = node.process(), node.process(device=None)
    assert state_of(caller, target.pid) == RUNNING
    assert ask(caller, "lock", target.pid) == SUCCESS
    assert ask(caller, "checkpoint", target.pid) == SUCCESS
    assert ask(caller, "restore", target.pid) == CUresult.CUDA_ERROR_NOT_INITIALIZED
    assert caller.code.cuMemGetInfo() == CUresult.CUDA_ERROR_NOT_INITIALIZED  # asking has not initialised it
    caller.ok.cuInit(0)
    assert ask(caller, "restore", target.pid) == SUCCESS
    assert ask(caller, "unlock", target.pid) == SUCCESS


def test_process_with_no_context_can_be_locked_and_saved(node: MockNode, agent: MockProcess) -> None:
    target = node.process(device=None)
    target.ok.cuInit(0)
    for call in ("lock", "checkpoint", "restore", "unlock"):
        assert ask(agent, call, target.pid) == SUCCESS
    assert target.ok.cuDeviceGetCount() == 1


def test_restore_thread_is_a_thread_of_the_target(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    thread = agent.ok.cuCheckpointProcessGetRestoreThreadId(target.pid)
    assert thread != target.pid
    assert os.path.exists(f"/proc/{target.pid}/task/{thread}")


def test_lock_waits_for_submitted_work(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    Kernels(target).busy(50_000)
    started = time.monotonic()
    assert ask(agent, "lock", target.pid) == SUCCESS
    [kernel] = [line for line in node.journal() if line["kind"] == "kernel"]
    assert kernel["end_ns"] <= time.monotonic_ns()
    assert time.monotonic() - started < 5
    assert target.begin("cuCtxSynchronize").is_blocked_for(0.05)


def test_lock_that_times_out_leaves_the_process_running(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    Kernels(target).busy(1_500_000)
    started = time.monotonic()
    assert agent.code.cuCheckpointProcessLock(target.pid, lock_args(40)) == NOT_READY
    assert 0.035 < time.monotonic() - started < 1.4  # before the kernel ends
    assert state_of(agent, target.pid) == RUNNING
    assert target.ok.cuMemGetInfo() == (1 << 20, 1 << 20)
    target.ok.cuCtxSynchronize()
    assert agent.code.cuCheckpointProcessLock(target.pid, lock_args(1000)) == SUCCESS


def test_timeout_of_zero_waits_for_the_work(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    Kernels(target).busy(120_000)
    assert agent.code.cuCheckpointProcessLock(target.pid, lock_args(0)) == SUCCESS
    assert state_of(agent, target.pid) == LOCKED


def test_call_that_waited_during_a_failed_lock_goes_on(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    Kernels(target).busy(5_000_000)
    locking = agent.begin("cuCheckpointProcessLock", target.pid, lock_args(80))
    allocating = target.thread("other").begin("cuMemGetInfo")
    assert locking.result() == (NOT_READY,)
    assert allocating.result()[0] in (SUCCESS, CUresult.CUDA_ERROR_INVALID_CONTEXT)


def test_locked_process_that_is_killed_is_gone(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    target.ok.cuMemAlloc(1 << 20)
    assert ask(agent, "lock", target.pid) == SUCCESS
    target.kill()
    assert agent.code.cuCheckpointProcessGetState(target.pid) == INVALID_VALUE
    assert ask(agent, "unlock", target.pid) == INVALID_VALUE
    node.process().ok.cuMemAlloc(1 << 20)


def test_caller_may_be_the_target_for_queries(node: MockNode) -> None:
    process = node.process()
    assert state_of(process, process.pid) == RUNNING


def test_state_is_of_the_process_not_of_a_device(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x1MiB")
    agent, target, other = node.process(), node.process(device=0), node.process(device=1)
    target.ok.cuMemAlloc(1 << 20)
    target.ok.cuCtxSetCurrent(target.ok.cuDevicePrimaryCtxRetain(1))
    target.ok.cuMemAlloc(1 << 20)
    assert other.code.cuMemAlloc(4096) == CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert ask(agent, "lock", target.pid) == SUCCESS
    assert ask(agent, "checkpoint", target.pid) == SUCCESS
    other.ok.cuMemAlloc(1 << 20)  # both devices were left
    agent.ok.cuMemAlloc(1 << 20)


# ---- who is stopped or killed


def test_stopped_target_hangs_the_call_and_not_its_bystanders(node: MockNode, agent: MockProcess) -> None:
    target, bystander = node.process(), node.process()
    target.signal(signal.SIGSTOP)
    locking = agent.thread("locker").begin("cuCheckpointProcessLock", target.pid, lock_args(50))
    asking = agent.thread("asker").begin("cuCheckpointProcessGetState", target.pid)
    assert locking.is_blocked_for(0.3)
    bystander.ok.cuMemFree(bystander.ok.cuMemAlloc(4096))
    assert state_of(agent, bystander.pid) == RUNNING
    target.signal(signal.SIGCONT)
    assert locking.result() == (SUCCESS,)
    assert asking.result()[0] == SUCCESS


@pytest.mark.parametrize("call", ["lock", "checkpoint", "restore"])
def test_killed_caller_cancels_nothing(node: MockNode, agent: MockProcess, call: str) -> None:
    target, caller = node.process(), node.process(device=None)
    caller.ok.cuInit(0)
    pointer = target.ok.cuMemAlloc(64 << 10)
    target.ok.cuMemsetD8(pointer, 0x5A, 64 << 10)
    before = {"lock": RUNNING, "checkpoint": LOCKED, "restore": CHECKPOINTED}[call]
    final = ALLOWED[before, call]
    for step in WAY_TO[before]:
        assert ask(agent, step, target.pid) == SUCCESS
    target.signal(signal.SIGSTOP)  # the call is sent, and cannot be answered before its caller is dead
    sent = caller.begin(CALLS[call], target.pid, None)
    assert sent.is_blocked_for(0.1)
    caller.kill()
    with pytest.raises(ProcessEnded):
        sent.result()
    target.signal(signal.SIGCONT)
    deadline = time.monotonic() + REPLY_TIMEOUT_S
    while state_of(agent, target.pid) != final:  # nothing tells the end of a call whose caller is gone
        assert time.monotonic() < deadline
    for step in {LOCKED: ["unlock"], CHECKPOINTED: ["restore", "unlock"]}[final]:
        assert ask(agent, step, target.pid) == SUCCESS
    back = target.host(64 << 10)
    target.ok.cuMemcpyDtoH(back, pointer, 64 << 10)
    assert target.peek(back, 64 << 10) == b"\x5a" * (64 << 10)


def test_target_killed_during_a_call_ends_the_call(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    target.signal(signal.SIGSTOP)
    locking = agent.begin("cuCheckpointProcessLock", target.pid, None)
    assert locking.is_blocked_for(0.1)
    target.kill()
    assert locking.result(timeout_s=5)[0] != SUCCESS


def test_two_callers_at_once_are_served_one_after_the_other(node: MockNode, agent: MockProcess) -> None:
    target, second = node.process(), node.process(device=None)
    second.ok.cuInit(0)
    for _ in range(30):
        pending = [asker.begin("cuCheckpointProcessLock", target.pid, None) for asker in (agent, second)]
        codes = [call.result()[0] for call in pending]
        assert sorted(codes) == [SUCCESS, ILLEGAL_STATE]
        assert ask(agent, "unlock", target.pid) == SUCCESS
