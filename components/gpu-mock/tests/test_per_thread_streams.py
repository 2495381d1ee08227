"""The variants whose stream 0 is the calling thread's own: found with flag 2, and independent of other threads."""

from __future__ import annotations

import struct

import pytest
from cuda.bindings.driver import CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, MockThread

SUCCESS = CUresult.CUDA_SUCCESS
NOT_READY = CUresult.CUDA_ERROR_NOT_READY
KIB = 1 << 10


@pytest.fixture
def process(node: MockNode) -> MockProcess:
    return node.process()


def second_thread(process: MockProcess) -> MockThread:
    second = process.thread("second")
    second.ok.cuCtxSetCurrent(process.ok.cuCtxGetCurrent())
    return second


def busy(thread: MockThread, function: int, microseconds: int) -> None:
    """A launch on the thread's own default stream."""
    parameter = thread.host(struct.pack("<Q", microseconds))
    parameters = thread.host(struct.pack("<Q", parameter))
    assert thread.per_thread("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0) == SUCCESS


def test_default_streams_of_two_threads_do_not_wait_for_each_other(process: MockProcess) -> None:
    function = Kernels(process).function("busy")
    second = second_thread(process)
    busy(process, function, 400_000)
    assert process.per_thread("cuStreamQuery", 0) == NOT_READY
    assert second.per_thread("cuStreamQuery", 0) == SUCCESS
    assert second.per_thread("cuStreamSynchronize", 0) == SUCCESS
    assert process.per_thread("cuStreamQuery", 0) == NOT_READY
    assert process.per_thread("cuStreamSynchronize", 0) == SUCCESS


def test_legacy_stream_waits_for_them(process: MockProcess) -> None:
    function = Kernels(process).function("busy")
    busy(process, function, 300_000)
    assert process.code.cuStreamQuery(0) == SUCCESS  # nothing was put into it
    process.ok.cuMemsetD8Async(process.ok.cuMemAlloc(16), 1, 16, 0)
    assert process.code.cuStreamQuery(0) == NOT_READY
    process.ok.cuStreamSynchronize(0)
    assert process.per_thread("cuStreamQuery", 0) == SUCCESS


def test_copies_and_memsets_of_a_thread_are_in_order(process: MockProcess) -> None:
    size = 16 * KIB
    function = Kernels(process).function("busy")
    first, second = process.ok.cuMemAlloc(size), process.ok.cuMemAlloc(size)
    source, back = process.ok.cuMemHostAlloc(size, 0), process.ok.cuMemHostAlloc(size, 0)
    process.poke(source, bytes(range(256)) * (size // 256))
    synchronous: list[tuple[str, tuple[int, ...]]] = [
        ("cuMemcpyHtoD", (first, source, size)), ("cuMemcpyDtoD", (second, first, size)),
        ("cuMemcpyDtoH", (back, second, size)), ("cuMemcpy", (back, first, size)),
        ("cuMemsetD8", (first, 1, size)), ("cuMemsetD16", (first, 1, size // 2)),
        ("cuMemsetD32", (first, 1, size // 4)),
    ]  # fmt: skip
    for call, arguments in synchronous:
        assert process.per_thread(call, *arguments) == SUCCESS, call
    assert process.peek(back, size) == process.peek(source, size)
    busy(process, function, 20_000)
    queued: list[tuple[str, tuple[int, ...]]] = [
        ("cuMemcpyHtoDAsync", (first, source, size, 0)), ("cuMemcpyDtoDAsync", (second, first, size, 0)),
        ("cuMemsetD8Async", (first, 7, size, 0)), ("cuMemcpyDtoHAsync", (back, second, size, 0)),
        ("cuMemsetD16Async", (second, 7, size // 2, 0)), ("cuMemsetD32Async", (second, 7, size // 4, 0)),
        ("cuMemcpyAsync", (second, source, size, 0)),
    ]  # fmt: skip
    for call, arguments in queued:
        assert process.per_thread(call, *arguments) == SUCCESS, call
    assert process.per_thread("cuStreamSynchronize", 0) == SUCCESS
    assert process.peek(back, size) == process.peek(source, size)


def test_events_in_a_threads_own_stream(process: MockProcess) -> None:
    function = Kernels(process).function("busy")
    second = second_thread(process)
    event = process.ok.cuEventCreate(0)
    busy(process, function, 300_000)
    assert process.per_thread("cuEventRecord", event, 0) == SUCCESS
    assert process.code.cuEventQuery(event) == NOT_READY
    assert second.per_thread("cuStreamWaitEvent", 0, event, 0) == SUCCESS
    assert second.per_thread("cuStreamQuery", 0) == NOT_READY
    assert second.per_thread("cuStreamSynchronize", 0) == SUCCESS
    assert process.code.cuEventQuery(event) == SUCCESS


def test_handle_2_means_the_threads_own_stream(process: MockProcess) -> None:
    kernels = Kernels(process)
    kernels.busy(200_000, stream=2)
    assert process.per_thread("cuStreamQuery", 0) == NOT_READY
    process.ok.cuStreamSynchronize(2)
    assert process.per_thread("cuStreamQuery", 0) == SUCCESS


def test_lock_waits_for_them_too(node: MockNode, process: MockProcess) -> None:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    busy(process, Kernels(process).function("busy"), 50_000)
    agent.ok.cuCheckpointProcessLock(process.pid, None)
    [kernel] = [line for line in node.journal() if line["kind"] == "kernel"]
    assert kernel["end_ns"] is not None
    waiting = process.begin("per_thread", "cuStreamQuery", 0)
    assert waiting.is_blocked_for(0.05)
    agent.ok.cuCheckpointProcessUnlock(process.pid, None)
    assert waiting.result() == SUCCESS
