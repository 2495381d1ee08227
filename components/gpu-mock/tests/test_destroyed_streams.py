"""A destroyed stream is no handle any more, but its queued work goes on, and is waited for."""

from __future__ import annotations

import pytest
from cuda.bindings.driver import CUresult, CUstream_flags

from kernels import Kernels
from mock_node import MockNode, MockProcess, lock_args

LONG_US = 80_000
PAGE = 4096


@pytest.fixture
def process(node: MockNode) -> MockProcess:
    return node.process()


def busy_and_destroy(process: MockProcess, flags: int) -> None:
    stream = process.ok.cuStreamCreate(flags)
    Kernels(process).busy(LONG_US, stream)
    process.ok.cuStreamDestroy(stream)
    assert process.code.cuStreamQuery(stream) == CUresult.CUDA_ERROR_INVALID_HANDLE


@pytest.mark.parametrize("flags", [CUstream_flags.CU_STREAM_DEFAULT, CUstream_flags.CU_STREAM_NON_BLOCKING])
def test_context_waits_for_it(process: MockProcess, flags: CUstream_flags) -> None:
    busy_and_destroy(process, int(flags))
    waiting = process.begin("cuCtxSynchronize")
    assert waiting.is_blocked_for(LONG_US / 1e6 / 3)
    assert waiting.result() == (CUresult.CUDA_SUCCESS,)


def test_default_stream_waits_for_it_if_it_was_a_blocking_one(process: MockProcess) -> None:
    pointer, host = process.ok.cuMemAlloc(PAGE), process.host(PAGE)
    busy_and_destroy(process, int(CUstream_flags.CU_STREAM_DEFAULT))
    copying = process.begin("cuMemcpyDtoH", host, pointer, PAGE)
    assert copying.is_blocked_for(LONG_US / 1e6 / 3)
    assert copying.result() == (CUresult.CUDA_SUCCESS,)


def test_end_of_the_context_waits_for_it(process: MockProcess) -> None:
    busy_and_destroy(process, int(CUstream_flags.CU_STREAM_NON_BLOCKING))
    ending = process.begin("cuDevicePrimaryCtxReset", 0)
    assert ending.is_blocked_for(LONG_US / 1e6 / 3)
    assert ending.result() == (CUresult.CUDA_SUCCESS,)


def test_lock_waits_for_it(node: MockNode, process: MockProcess) -> None:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    busy_and_destroy(process, int(CUstream_flags.CU_STREAM_NON_BLOCKING))
    assert agent.code.cuCheckpointProcessLock(process.pid, lock_args(5)) == CUresult.CUDA_ERROR_NOT_READY
    agent.ok.cuCheckpointProcessLock(process.pid, None)
    agent.ok.cuCheckpointProcessUnlock(process.pid, None)
