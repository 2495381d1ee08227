"""Streams keep their order, events mark points in it, and waiting ends when the work is done."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from cuda.bindings.driver import CUevent_flags, CUresult, CUstream_flags

from kernels import Kernels
from mock_node import MockNode, MockProcess

NOT_READY = CUresult.CUDA_ERROR_NOT_READY
INVALID_HANDLE = CUresult.CUDA_ERROR_INVALID_HANDLE
SUCCESS = CUresult.CUDA_SUCCESS
NON_BLOCKING = int(CUstream_flags.CU_STREAM_NON_BLOCKING)
NO_TIMING = int(CUevent_flags.CU_EVENT_DISABLE_TIMING)
LONG_US = 200_000


@pytest.fixture
def process(node: MockNode) -> MockProcess:
    return node.process()


def test_stream_is_ready_when_its_work_is_done(process: MockProcess) -> None:
    kernels = Kernels(process)
    stream = process.ok.cuStreamCreate(NON_BLOCKING)
    assert process.code.cuStreamQuery(stream) == SUCCESS
    kernels.busy(LONG_US, stream)
    assert process.code.cuStreamQuery(stream) == NOT_READY
    process.ok.cuStreamSynchronize(stream)
    assert process.code.cuStreamQuery(stream) == SUCCESS


def test_launch_returns_at_once_and_synchronize_waits(process: MockProcess) -> None:
    kernels = Kernels(process)
    kernels.busy(LONG_US)
    waiting = process.begin("cuCtxSynchronize")
    assert waiting.is_blocked_for(LONG_US / 1e6 / 3)
    assert waiting.result() == (SUCCESS,)


def test_event_is_not_ready_until_the_work_before_it_is_done(process: MockProcess) -> None:
    kernels = Kernels(process)
    stream = process.ok.cuStreamCreate(NON_BLOCKING)
    event = process.ok.cuEventCreate(0)
    assert process.code.cuEventQuery(event) == SUCCESS  # never recorded: nothing to wait for
    kernels.busy(LONG_US, stream)
    process.ok.cuEventRecord(event, stream)
    assert process.code.cuEventQuery(event) == NOT_READY
    process.ok.cuEventSynchronize(event)
    assert process.code.cuEventQuery(event) == SUCCESS


def test_elapsed_time_is_that_of_the_work_between(process: MockProcess) -> None:
    kernels = Kernels(process)
    stream = process.ok.cuStreamCreate(NON_BLOCKING)
    begin, end = process.ok.cuEventCreate(0), process.ok.cuEventCreate(0)
    process.ok.cuEventRecord(begin, stream)
    kernels.busy(LONG_US, stream)
    process.ok.cuEventRecord(end, stream)
    assert process.code.cuEventElapsedTime(begin, end) == NOT_READY
    process.ok.cuEventSynchronize(end)
    assert process.ok.cuEventElapsedTime(begin, end) >= LONG_US / 1000 * 0.99
    assert process.ok.cuEventElapsedTime(begin, begin) == 0


def test_elapsed_time_needs_two_recorded_events_with_timing(process: MockProcess) -> None:
    recorded, fresh = process.ok.cuEventCreate(0), process.ok.cuEventCreate(0)
    untimed = process.ok.cuEventCreate(NO_TIMING)
    for event in (recorded, untimed):
        process.ok.cuEventRecord(event, 0)
        process.ok.cuEventSynchronize(event)
    assert process.code.cuEventElapsedTime(recorded, fresh) == INVALID_HANDLE
    assert process.code.cuEventElapsedTime(recorded, untimed) == INVALID_HANDLE


def test_stream_waits_for_an_event_of_another_stream(process: MockProcess) -> None:
    kernels = Kernels(process)
    first, second = process.ok.cuStreamCreate(NON_BLOCKING), process.ok.cuStreamCreate(NON_BLOCKING)
    event = process.ok.cuEventCreate(NO_TIMING)
    pointer = process.ok.cuMemAlloc(4096)
    pinned = process.ok.cuMemHostAlloc(4096, 0)
    for value in range(1, 20):
        kernels.busy(2_000, first)
        process.ok.cuMemsetD8Async(pointer, value, 4096, first)
        process.ok.cuEventRecord(event, first)
        process.ok.cuStreamWaitEvent(second, event, 0)
        process.ok.cuMemcpyDtoHAsync(pinned, pointer, 4096, second)
        process.ok.cuStreamSynchronize(second)
        assert process.peek(pinned, 4096) == bytes([value]) * 4096


def test_wait_looks_at_the_latest_record_only(process: MockProcess) -> None:
    kernels = Kernels(process)
    first, second = process.ok.cuStreamCreate(NON_BLOCKING), process.ok.cuStreamCreate(NON_BLOCKING)
    event = process.ok.cuEventCreate(NO_TIMING)
    process.ok.cuStreamWaitEvent(second, event, 0)  # not recorded yet: nothing to wait for
    kernels.busy(LONG_US, first)
    process.ok.cuEventRecord(event, first)
    process.ok.cuStreamSynchronize(second)
    assert process.code.cuEventQuery(event) == NOT_READY


def test_default_stream_waits_for_the_others_unless_they_do_not_block(process: MockProcess) -> None:
    kernels = Kernels(process)
    blocking, non_blocking = process.ok.cuStreamCreate(0), process.ok.cuStreamCreate(NON_BLOCKING)
    kernels.busy(LONG_US, blocking)
    process.ok.cuMemsetD8Async(process.ok.cuMemAlloc(16), 1, 16, 0)
    assert process.code.cuStreamQuery(0) == NOT_READY
    process.ok.cuStreamSynchronize(0)
    assert process.code.cuStreamQuery(blocking) == SUCCESS
    kernels.busy(LONG_US, non_blocking)
    process.ok.cuStreamSynchronize(0)
    assert process.code.cuStreamQuery(non_blocking) == NOT_READY


def test_properties_of_a_stream(process: MockProcess) -> None:
    stream = process.ok.cuStreamCreateWithPriority(NON_BLOCKING, 0)
    assert process.ok.cuStreamGetFlags(stream) == NON_BLOCKING
    assert process.ok.cuStreamGetPriority(stream) == 0
    assert process.ok.cuStreamGetDevice(stream) == 0


def test_destroyed_stream_finishes_its_work(process: MockProcess) -> None:
    stream = process.ok.cuStreamCreate(NON_BLOCKING)
    event = process.ok.cuEventCreate(0)
    Kernels(process).busy(LONG_US, stream)
    process.ok.cuEventRecord(event, stream)
    process.ok.cuStreamDestroy(stream)
    process.ok.cuEventSynchronize(event)


def test_gone_handles_are_refused(process: MockProcess) -> None:
    stream, event = process.ok.cuStreamCreate(0), process.ok.cuEventCreate(0)
    process.ok.cuStreamDestroy(stream)
    process.ok.cuEventDestroy(event)
    wrong = (INVALID_HANDLE, CUresult.CUDA_ERROR_INVALID_CONTEXT)
    assert process.code.cuStreamSynchronize(stream) in wrong
    assert process.code.cuEventQuery(event) in wrong
    assert process.code.cuEventRecord(event, 0) in wrong


def test_two_streams_of_one_process_share_one_device_in_turns(new_node: Callable[..., MockNode]) -> None:
    node = new_node()
    process = node.process()
    kernels = Kernels(process)
    streams = [process.ok.cuStreamCreate(NON_BLOCKING) for _ in range(2)]
    for _ in range(5):
        for stream in streams:
            kernels.busy(3_000, stream)
    process.ok.cuCtxSynchronize()
    spans = sorted((line["begin_ns"], line["end_ns"]) for line in node.journal() if line["kind"] == "kernel")
    assert len(spans) == 10
    assert all(end <= following for (_, end), (following, _) in pairwise(spans))
