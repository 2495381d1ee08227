"""While a process is locked, its calls that touch the device wait, and go on with the right result afterwards.

Documented: "API locks are taken so further CUDA API calls will block" (CU_PROCESS_STATE_LOCKED).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, Pending

KIB, MIB = 1 << 10, 1 << 20
SUCCESS = CUresult.CUDA_SUCCESS


class Prepared:
    """A process with one of everything, so that each call has something to be about."""

    def __init__(self, process: MockProcess) -> None:
        self.process = process
        self.kernels = Kernels(process)
        self.kernels.function("busy")
        self.pointer = process.ok.cuMemAlloc(64 * KIB)
        self.spare = process.ok.cuMemAlloc(64 * KIB)
        self.host = process.host(b"\x11" * 64 * KIB)
        self.pinned = process.ok.cuMemHostAlloc(64 * KIB, 0)
        self.stream = process.ok.cuStreamCreate(1)
        self.event = process.ok.cuEventCreate(0)
        self.context = process.ok.cuCtxGetCurrent()


BLOCKED: dict[str, Callable[[Prepared], Pending]] = {
    "allocate": lambda at: at.process.begin("cuMemAlloc", 4096),
    "free": lambda at: at.process.begin("cuMemFree", at.spare),
    "memory info": lambda at: at.process.begin("cuMemGetInfo"),
    "copy in": lambda at: at.process.begin("cuMemcpyHtoD", at.pointer, at.host, 64 * KIB),
    "copy out": lambda at: at.process.begin("cuMemcpyDtoH", at.host, at.pointer, 64 * KIB),
    "copy on the device": lambda at: at.process.begin("cuMemcpyDtoD", at.pointer, at.spare, 64 * KIB),
    "copy in, asynchronously": lambda at: at.process.begin("cuMemcpyHtoDAsync", at.pointer, at.pinned, 64, at.stream),
    "copy out, asynchronously": lambda at: at.process.begin("cuMemcpyDtoHAsync", at.pinned, at.pointer, 64, at.stream),
    "memset": lambda at: at.process.begin("cuMemsetD8", at.pointer, 3, 64 * KIB),
    "memset, asynchronously": lambda at: at.process.begin("cuMemsetD32Async", at.pointer, 3, 64, at.stream),
    "launch": lambda at: at.kernels.begin_busy(10),
    "load a module": lambda at: at.kernels.begin_load(),
    "create a stream": lambda at: at.process.begin("cuStreamCreate", 0),
    "destroy a stream": lambda at: at.process.begin("cuStreamDestroy", at.stream),
    "synchronize a stream": lambda at: at.process.begin("cuStreamSynchronize", at.stream),
    "record an event": lambda at: at.process.begin("cuEventRecord", at.event, at.stream),
    "create an event": lambda at: at.process.begin("cuEventCreate", 0),
    "query an event": lambda at: at.process.begin("cuEventQuery", at.event),
    "synchronize": lambda at: at.process.begin("cuCtxSynchronize"),
    "create a context": lambda at: at.process.begin("cuCtxCreate", None, 0, 0),
    "release the primary context": lambda at: at.process.begin("cuDevicePrimaryCtxRelease", 0),
    "allocate pinned memory": lambda at: at.process.begin("cuMemHostAlloc", 4096, 0),
}


@pytest.mark.parametrize("saved", [False, True], ids=["locked", "saved"])
@pytest.mark.parametrize("call", BLOCKED)
def test_call_waits_and_then_succeeds(node: MockNode, call: str, saved: bool) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    prepared = Prepared(target)
    target.ok.cuMemsetD8(prepared.pointer, 0x77, 64 * KIB)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    if saved:
        agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    waiting = BLOCKED[call](prepared)
    assert waiting.is_blocked_for(0.05)
    if saved:
        agent.ok.cuCheckpointProcessRestore(target.pid, None)
        assert waiting.is_blocked_for(0.02)
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    assert waiting.result()[0] == SUCCESS
    if call == "copy out":
        assert target.peek(prepared.host, 64 * KIB) == b"\x77" * 64 * KIB


def test_calls_that_touch_nothing_go_on(node: MockNode) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    assert target.ok.cuDriverGetVersion() == 13000
    assert target.ok.cuGetErrorName(CUresult.CUDA_ERROR_NOT_READY) == b"CUDA_ERROR_NOT_READY"


def test_thread_inside_a_synchronising_call_survives_a_save(node: MockNode) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    kernels = Kernels(target)
    pointer = target.ok.cuMemAlloc(64 * KIB)
    for value in (1, 2, 3):
        kernels.busy(50_000)
        target.ok.cuMemsetD8Async(pointer, value, 64 * KIB, 0)
    inside = target.begin("cuCtxSynchronize")
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    agent.ok.cuCheckpointProcessRestore(target.pid, None)
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    assert inside.result() == (SUCCESS,)
    back = target.host(64 * KIB)
    target.ok.cuMemcpyDtoH(back, pointer, 64 * KIB)
    assert target.peek(back, 64 * KIB) == b"\3" * 64 * KIB


def test_many_threads_wait_and_all_go_on(node: MockNode) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    context = target.ok.cuCtxGetCurrent()
    threads = [target.thread(f"worker {number}") for number in range(16)]
    for thread in threads:
        thread.ok.cuCtxSetCurrent(context)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    waiting = [thread.begin("cuMemAlloc", 4096) for thread in threads]
    assert waiting[-1].is_blocked_for(0.05)
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    pointers = {pending.result()[1] for pending in waiting}
    assert len(pointers) == 16


def test_process_that_starts_while_its_sibling_is_locked_is_free(node: MockNode) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    sibling = node.process()
    sibling.ok.cuMemFree(sibling.ok.cuMemAlloc(MIB))


def test_locked_process_can_exit(node: MockNode) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    target.ok.cuMemAlloc(MIB)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    target.end()
    node.process().ok.cuMemAlloc(MIB)
