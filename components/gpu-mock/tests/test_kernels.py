"""Modules from PTX text and the built-in kernels, whose results are held against numpy."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy
import numpy.typing
import pytest
from cuda.bindings.driver import CUresult

from kernels import Kernels, ptx_file
from mock_node import MockNode, MockProcess

Floats = numpy.typing.NDArray[numpy.float32]
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE
INVALID_HANDLE = CUresult.CUDA_ERROR_INVALID_HANDLE
ILLEGAL_ADDRESS = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
HEAD = b".version 7.0\n.target sm_52\n.address_size 64\n"


@pytest.fixture
def process(new_node: Callable[..., MockNode]) -> MockProcess:
    return new_node("1x16MiB").process()


def upload(process: MockProcess, values: Floats) -> int:
    pointer = int(process.ok.cuMemAlloc(values.nbytes))
    process.ok.cuMemcpyHtoD(pointer, process.host(values.tobytes()), values.nbytes)
    return pointer


def download(process: MockProcess, pointer: int, count: int) -> Floats:
    back = process.host(4 * count)
    process.ok.cuMemcpyDtoH(back, pointer, 4 * count)
    return numpy.frombuffer(process.peek(back, 4 * count), numpy.float32)


def some_floats(count: int, seed: int) -> Floats:
    return numpy.random.default_rng(seed).standard_normal(count).astype(numpy.float32)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 70_000, 1_000_003])
def test_axpy_is_one_rounding_per_element(process: MockProcess, count: int) -> None:
    x, y = some_floats(count, 1), some_floats(count, 2)
    at_x, at_y = upload(process, x), upload(process, y)
    Kernels(process).launch("axpy", 1.7, at_x, at_y, count, threads=count)
    factor = numpy.float64(numpy.float32(1.7))
    expected = (factor * x.astype(numpy.float64) + y.astype(numpy.float64)).astype(numpy.float32)  # fused, as fma.rn
    numpy.testing.assert_array_equal(download(process, at_y, count), expected)
    numpy.testing.assert_array_equal(download(process, at_x, count), x)


@pytest.mark.parametrize("count", [1, 1000, 100_001])
def test_scale_and_fill(process: MockProcess, count: int) -> None:
    x = some_floats(count, 3)
    pointer, kernels = upload(process, x), Kernels(process)
    kernels.launch("scale", -0.3, pointer, count, threads=count)
    numpy.testing.assert_array_equal(download(process, pointer, count), numpy.float32(-0.3) * x)
    kernels.launch("fill", 2.5, pointer, count, threads=count)
    numpy.testing.assert_array_equal(download(process, pointer, count), numpy.full(count, 2.5, numpy.float32))


def test_only_the_launched_threads_work_and_none_beyond_n(process: MockProcess) -> None:
    pointer, kernels = upload(process, numpy.zeros(1024, numpy.float32)), Kernels(process)
    kernels.launch("fill", 1.0, pointer, 1024, threads=256)
    assert download(process, pointer, 1024).sum() == 256
    kernels.launch("fill", 1.0, pointer, 300, threads=1024)
    assert download(process, pointer, 1024).sum() == 300


def test_parameters_may_come_in_one_buffer(process: MockProcess) -> None:
    pointer, kernels = upload(process, numpy.zeros(256, numpy.float32)), Kernels(process)
    packed = struct.pack("<fxxxxQI", 3.0, pointer, 256)
    buffer, size = process.host(packed), process.host(struct.pack("<Q", len(packed)))
    extra = process.host(struct.pack("<QQQQQ", 1, buffer, 2, size, 0))
    fill = kernels.function("fill")
    process.ok.cuLaunchKernel(fill, 1, 1, 1, 256, 1, 1, 0, 0, 0, extra)
    assert download(process, pointer, 256).sum() == 3 * 256


def test_parameters_are_copied_at_the_launch(process: MockProcess) -> None:
    pointer, kernels = upload(process, numpy.zeros(64, numpy.float32)), Kernels(process)
    stream = process.ok.cuStreamCreate(1)
    kernels.busy(30_000, stream)
    kernels.launch("fill", 4.0, pointer, 64, threads=64, stream=stream)  # its arguments are gone when it runs
    process.ok.cuStreamSynchronize(stream)
    assert download(process, pointer, 64).sum() == 256


# ---- modules


def test_text_that_is_not_ptx_is_refused(process: MockProcess) -> None:
    assert process.code.cuModuleLoadData(b"\x7fELF this is no text\0") == CUresult.CUDA_ERROR_INVALID_IMAGE
    assert process.code.cuModuleLoadData(b"\0") == CUresult.CUDA_ERROR_INVALID_IMAGE
    broken = HEAD + b".visible .entry fill(.param .nonsense x) { ret; }\0"
    assert process.code.cuModuleLoadData(broken) == CUresult.CUDA_ERROR_INVALID_PTX


def test_function_that_the_text_does_not_have_is_not_found(process: MockProcess) -> None:
    module = process.ok.cuModuleLoadData(HEAD + b".visible .entry busy(.param .u64 a) { ret; }\0")
    process.ok.cuModuleGetFunction(module, b"busy")
    assert process.code.cuModuleGetFunction(module, b"fill") == CUresult.CUDA_ERROR_NOT_FOUND
    assert process.code.cuModuleGetFunction(module + 8, b"busy") == INVALID_HANDLE


@pytest.mark.parametrize(
    "entry", [b"softmax(.param .u64 a)", b"busy(.param .u32 a)", b"fill(.param .f32 a, .param .u64 b)"]
)
def test_kernel_that_the_mock_cannot_run_is_not_supported(process: MockProcess, entry: bytes) -> None:
    """Real text, and no kernel of ours: never a kernel that silently does something else."""
    module = process.ok.cuModuleLoadData(HEAD + b".visible .entry " + entry + b" { ret; }\0")
    name = entry.split(b"(")[0]
    assert process.code.cuModuleGetFunction(module, name) == CUresult.CUDA_ERROR_NOT_SUPPORTED


def test_comments_and_layout_of_the_text_do_not_matter(process: MockProcess) -> None:
    text = b"/* .entry ghost() */ // .entry ghost()\n.visible\n.entry   busy (\n .param .u64 .ptr a\n)\n{ret;}\0"
    module = process.ok.cuModuleLoadData(HEAD + text)
    process.ok.cuModuleGetFunction(module, b"busy")
    assert process.code.cuModuleGetFunction(module, b"ghost") == CUresult.CUDA_ERROR_NOT_FOUND


def test_module_from_a_file(process: MockProcess) -> None:
    module = process.ok.cuModuleLoad(str(ptx_file()).encode())
    process.ok.cuModuleGetFunction(module, b"axpy")
    assert process.code.cuModuleLoad(b"/nonexistent.ptx") == CUresult.CUDA_ERROR_FILE_NOT_FOUND


def test_module_with_options(process: MockProcess) -> None:
    module = process.ok.cuModuleLoadDataEx(ptx_file().read_bytes() + b"\0", 0, [], [])
    process.ok.cuModuleGetFunction(module, b"axpy")


def test_unloaded_module_is_gone_and_its_launched_work_is_not(process: MockProcess) -> None:
    pointer, kernels = upload(process, numpy.zeros(64, numpy.float32)), Kernels(process)
    stream = process.ok.cuStreamCreate(1)
    kernels.busy(30_000, stream)
    kernels.launch("fill", 1.0, pointer, 64, threads=64, stream=stream)
    process.ok.cuModuleUnload(kernels.module)
    assert process.code.cuModuleUnload(kernels.module) == INVALID_HANDLE
    assert process.code.cuModuleGetFunction(kernels.module, b"fill") == INVALID_HANDLE
    process.ok.cuStreamSynchronize(stream)
    assert download(process, pointer, 64).sum() == 64


# ---- wrong launches


def test_empty_and_oversized_grids_are_refused(process: MockProcess) -> None:
    busy = Kernels(process).function("busy")
    parameters = ((1,), (ctypes.c_uint64,))
    for grid, block in (((0, 1, 1), (1, 1, 1)), ((1, 1, 1), (0, 1, 1)), ((1, 1, 1), (2048, 1, 1))):
        assert process.code.cuLaunchKernel(busy, *grid, *block, 0, 0, parameters, 0) == INVALID_VALUE


def test_kernel_that_leaves_its_memory_breaks_its_context(process: MockProcess) -> None:
    kernels = Kernels(process)
    pointer = upload(process, numpy.zeros(64, numpy.float32))
    kernels.launch("fill", 1.0, pointer, 1 << 20, threads=1 << 20)
    assert process.code.cuCtxSynchronize() == ILLEGAL_ADDRESS
    # Documented: "the process must be terminated and relaunched": the error stays.
    assert process.code.cuMemAlloc(16) == ILLEGAL_ADDRESS
    assert process.code.cuStreamSynchronize(0) == ILLEGAL_ADDRESS


def test_freed_memory_cannot_be_computed_on(process: MockProcess) -> None:
    kernels = Kernels(process)
    pointer = upload(process, numpy.zeros(64, numpy.float32))
    process.ok.cuMemFree(pointer)
    kernels.launch("scale", 1.0, pointer, 64, threads=64)
    assert process.code.cuCtxSynchronize() == ILLEGAL_ADDRESS


def test_one_process_broken_does_not_break_another(new_node: Callable[..., MockNode]) -> None:
    node = new_node()
    broken, sound = node.process(), node.process()
    Kernels(broken).launch("fill", 1.0, 0x7000, 64, threads=64)
    assert broken.code.cuCtxSynchronize() == ILLEGAL_ADDRESS
    kernels = Kernels(sound)
    pointer = upload(sound, numpy.zeros(64, numpy.float32))
    kernels.launch("fill", 1.0, pointer, 64, threads=64)
    assert download(sound, pointer, 64).sum() == 64
