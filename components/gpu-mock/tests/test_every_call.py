"""No call without a test: what the libraries export is driven here, or in another file beside this one."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda.bindings.driver import CUpointer_attribute, CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, exported_names

KIB = 1 << 10
SUCCESS = CUresult.CUDA_SUCCESS
NOT_SUPPORTED = CUresult.CUDA_ERROR_NOT_SUPPORTED
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


def base_name(exported: str) -> str:
    """cuMemcpyHtoD_v2_ptds -> cuMemcpyHtoD."""
    return re.sub(r"(_v\d)?(_ptds|_ptsz)?$", "", exported)


def test_every_exported_call_is_named_in_a_test() -> None:
    tests = "\n".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        exported = exported_names(library)
        assert len(exported) > 25
        words = set(re.findall(r"\w+", tests))
        assert [name for name in exported if base_name(name) not in words and name not in words] == []


def test_only_the_api_is_exported() -> None:
    """Two libraries of the same sources live in one process: what is theirs alone must not be seen."""
    assert all(name.startswith("cu") for name in exported_names("libcuda.so.1"))
    assert all(name.startswith("nvml") for name in exported_names("libnvidia-ml.so.1"))


# ---- calls that have no better place


@pytest.fixture
def process(new_node: Callable[..., MockNode]) -> MockProcess:
    return new_node("2x1MiB").process()


def test_context_ids_and_flags(process: MockProcess) -> None:
    first = process.ok.cuCtxGetCurrent()
    second = process.ok.cuCtxCreate(None, 0, 1)
    assert process.ok.cuCtxGetId(first) != process.ok.cuCtxGetId(second)
    process.ok.cuDevicePrimaryCtxSetFlags(1, 4)
    assert process.ok.cuDevicePrimaryCtxGetState(1) == (4, 0)
    assert process.code.cuDeviceCanAccessPeer(0, 7) == CUresult.CUDA_ERROR_INVALID_DEVICE
    assert process.ok.cuDeviceCanAccessPeer(0, 1) == 0


def test_stream_belongs_to_its_context(process: MockProcess) -> None:
    streams = [process.ok.cuStreamCreate(0) for _ in range(2)]
    assert process.ok.cuStreamGetId(streams[0]) != process.ok.cuStreamGetId(streams[1])
    context = process.ok.cuStreamGetCtx(streams[0])
    assert (context[0] if isinstance(context, tuple) else context) == process.ok.cuCtxGetCurrent()


def test_record_with_flags(process: MockProcess) -> None:
    event = process.ok.cuEventCreate(0)
    process.ok.cuEventRecordWithFlags(event, 0, 0)
    process.ok.cuEventSynchronize(event)
    assert process.code.cuEventRecordWithFlags(event, 0, 1) == NOT_SUPPORTED


def test_host_functions_run_in_the_order_of_their_stream(process: MockProcess) -> None:
    kernels = Kernels(process)
    stream = process.ok.cuStreamCreate(1)
    counter = process.host(1)
    kernels.busy(50_000, stream)
    process.ok.cuLaunchHostFunc(stream, process.callback(counter, 1), 0)
    process.ok.cuStreamAddCallback(stream, process.callback(counter, 2), 0, 0)
    assert process.peek(counter, 1) == b"\0"
    process.ok.cuStreamSynchronize(stream)
    assert process.peek(counter, 1) == b"\2"


def test_launch_with_a_configuration(process: MockProcess) -> None:
    from mock_actor import Struct

    kernels = Kernels(process)
    pointer = process.ok.cuMemAlloc(4 * KIB)
    arguments = process.host(struct.pack("<fxxxxQI", 1.5, pointer, 256))
    places = process.host(struct.pack("<QQQ", arguments, arguments + 8, arguments + 16))
    sizes = {"gridDimX": 1, "gridDimY": 1, "gridDimZ": 1, "blockDimX": 256, "blockDimY": 1, "blockDimZ": 1}
    process.ok.cuLaunchKernelEx(Struct("CUlaunchConfig", **sizes, hStream=0), kernels.function("fill"), places, 0)
    back = process.host(KIB)
    process.ok.cuMemcpyDtoH(back, pointer, KIB)
    assert process.peek(back, KIB) == struct.pack("<f", 1.5) * 256


def test_pitched_memory(process: MockProcess) -> None:
    pointer, pitch = process.ok.cuMemAllocPitch(1000, 10, 4)
    assert pitch >= 1000
    assert process.ok.cuMemGetAddressRange(pointer) == (pointer, pitch * 10)
    assert process.code.cuMemAllocPitch(1000, 10, 3) == INVALID_VALUE


def test_mapped_host_memory(process: MockProcess) -> None:
    pinned = process.ok.cuMemHostAlloc(4 * KIB, 3)
    assert process.ok.cuMemHostGetDevicePointer(pinned, 0) == pinned  # unified addressing
    assert process.ok.cuMemHostGetFlags(pinned) & 3 == 3
    assert process.code.cuMemHostGetFlags(process.host(16)) == INVALID_VALUE


def test_attributes_of_pointers(process: MockProcess) -> None:
    pointer = process.ok.cuMemAlloc(4 * KIB)
    of = CUpointer_attribute
    assert process.ok.cuPointerGetAttribute(of.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer + 100) == pointer
    assert process.ok.cuPointerGetAttribute(of.CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer) == 4 * KIB
    assert process.ok.cuPointerGetAttribute(of.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == 0
    assert process.ok.cuPointerGetAttribute(of.CU_POINTER_ATTRIBUTE_CONTEXT, pointer) == process.ok.cuCtxGetCurrent()
    assert process.code.cuPointerGetAttribute(of.CU_POINTER_ATTRIBUTE_RANGE_SIZE, 0x5000) == INVALID_VALUE


@pytest.mark.parametrize(
    ("exported", "arguments"),
    [
        ("cuCtxCreate_v2", 3), ("cuCtxCreate_v3", 5), ("cuDeviceGetUuid", 2), ("cuDevicePrimaryCtxRelease", 1),
        ("cuDevicePrimaryCtxReset", 1), ("cuDevicePrimaryCtxSetFlags", 2), ("cuEventElapsedTime", 3),
        ("cuGetProcAddress", 4),
    ],
)  # fmt: skip
def test_older_variants_are_there(process: MockProcess, exported: str, arguments: int) -> None:
    """What an older program was linked against: with wrong arguments (all 0) it must answer, and not crash."""
    assert exported in exported_names("libcuda.so.1")
    assert process.raw("libcuda.so.1", exported, *[0] * arguments) in {int(code) for code in CUresult}
