"""Primary and plain contexts, and the stack of them that each thread has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUresult

from mock_node import MockNode, MockProcess

INVALID_CONTEXT = CUresult.CUDA_ERROR_INVALID_CONTEXT
SUCCESS = CUresult.CUDA_SUCCESS


@pytest.fixture
def process(new_node: Callable[..., MockNode]) -> MockProcess:
    process = new_node("2x1MiB").process(device=None)
    process.ok.cuInit(0)
    return process


def test_without_a_context_nothing_can_be_allocated(process: MockProcess) -> None:
    assert process.ok.cuCtxGetCurrent() == 0
    assert process.code.cuMemAlloc(16) == INVALID_CONTEXT
    assert process.code.cuCtxSynchronize() == INVALID_CONTEXT
    assert process.code.cuCtxGetDevice() == INVALID_CONTEXT
    assert process.code.cuStreamCreate(0) == INVALID_CONTEXT


def test_primary_context_is_one_and_counted(process: MockProcess) -> None:
    assert process.ok.cuDevicePrimaryCtxGetState(0) == (0, 0)
    first = process.ok.cuDevicePrimaryCtxRetain(0)
    assert process.ok.cuDevicePrimaryCtxRetain(0) == first
    assert process.ok.cuDevicePrimaryCtxRetain(1) != first
    assert process.ok.cuDevicePrimaryCtxGetState(0)[1] == 1
    process.ok.cuDevicePrimaryCtxRelease(0)
    assert process.ok.cuDevicePrimaryCtxGetState(0)[1] == 1
    process.ok.cuDevicePrimaryCtxRelease(0)
    assert process.ok.cuDevicePrimaryCtxGetState(0)[1] == 0
    assert process.code.cuDevicePrimaryCtxRelease(0) == INVALID_CONTEXT


def test_memory_goes_with_the_last_release(process: MockProcess) -> None:
    process.ok.cuCtxSetCurrent(process.ok.cuDevicePrimaryCtxRetain(0))
    free_before, _ = process.ok.cuMemGetInfo()
    process.ok.cuMemAlloc(512 * 1024)
    process.ok.cuDevicePrimaryCtxRelease(0)
    process.ok.cuCtxSetCurrent(process.ok.cuDevicePrimaryCtxRetain(0))
    assert process.ok.cuMemGetInfo()[0] == free_before


def test_reset_frees_memory_and_keeps_the_count(process: MockProcess) -> None:
    process.ok.cuCtxSetCurrent(process.ok.cuDevicePrimaryCtxRetain(0))
    process.ok.cuMemAlloc(1024 * 1024)
    process.ok.cuDevicePrimaryCtxReset(0)
    process.ok.cuCtxSetCurrent(process.ok.cuDevicePrimaryCtxRetain(0))
    pointer = process.ok.cuMemAlloc(1024 * 1024)
    process.ok.cuMemFree(pointer)


def test_plain_contexts_stack(process: MockProcess) -> None:
    first = process.ok.cuCtxCreate(None, 0, 0)
    second = process.ok.cuCtxCreate(None, 0, 1)
    assert process.ok.cuCtxGetCurrent() == second
    assert process.ok.cuCtxGetDevice() == 1
    assert process.ok.cuCtxPopCurrent() == second
    assert process.ok.cuCtxGetCurrent() == first
    assert process.ok.cuCtxGetDevice() == 0
    process.ok.cuCtxPushCurrent(second)
    assert process.ok.cuCtxGetCurrent() == second
    process.ok.cuCtxDestroy(second)
    assert process.ok.cuCtxGetCurrent() == first
    process.ok.cuCtxDestroy(first)
    assert process.ok.cuCtxGetCurrent() == 0
    assert process.code.cuCtxPopCurrent() == INVALID_CONTEXT


def test_destroyed_context_cannot_be_used(process: MockProcess) -> None:
    context = process.ok.cuCtxCreate(None, 0, 0)
    process.ok.cuMemAlloc(1024 * 1024)
    process.ok.cuCtxDestroy(context)
    assert process.code.cuCtxPushCurrent(context) in (INVALID_CONTEXT, CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
    process.ok.cuCtxCreate(None, 0, 0)
    process.ok.cuMemAlloc(1024 * 1024)  # what the destroyed one had is free again


def test_primary_context_cannot_be_destroyed_as_a_plain_one(process: MockProcess) -> None:
    assert process.code.cuCtxDestroy(process.ok.cuDevicePrimaryCtxRetain(0)) == INVALID_CONTEXT


def test_currentness_is_of_a_thread(process: MockProcess) -> None:
    context = process.ok.cuDevicePrimaryCtxRetain(1)
    process.ok.cuCtxSetCurrent(context)
    other = process.thread("other")
    assert other.ok.cuCtxGetCurrent() == 0
    other.ok.cuCtxSetCurrent(context)
    assert other.ok.cuCtxGetDevice() == 1
    process.ok.cuCtxSetCurrent(0)
    assert process.ok.cuCtxGetCurrent() == 0
    assert other.ok.cuCtxGetCurrent() == context


def test_devices_do_not_share_memory(process: MockProcess) -> None:
    for device in (0, 1):
        process.ok.cuCtxSetCurrent(process.ok.cuDevicePrimaryCtxRetain(device))
        process.ok.cuMemAlloc(1024 * 1024)
        assert process.code.cuMemAlloc(4096) == CUresult.CUDA_ERROR_OUT_OF_MEMORY


def test_unknown_device_and_context(process: MockProcess) -> None:
    assert process.code.cuDevicePrimaryCtxRetain(7) == CUresult.CUDA_ERROR_INVALID_DEVICE
    assert process.code.cuCtxCreate(None, 0, 7) == CUresult.CUDA_ERROR_INVALID_DEVICE
    assert process.code.cuCtxSetCurrent(0x1234) in (INVALID_CONTEXT, CUresult.CUDA_ERROR_INVALID_VALUE)


def test_context_queries(process: MockProcess) -> None:
    context = process.ok.cuCtxCreate(None, 0, 0)
    assert process.ok.cuCtxGetApiVersion(context) > 3000
    assert process.ok.cuCtxGetFlags() == 0
    lowest, highest = process.ok.cuCtxGetStreamPriorityRange()
    assert lowest >= highest
    assert process.code.cuCtxSynchronize() == SUCCESS
