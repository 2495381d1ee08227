"""Initialisation, versions, error texts, and what a forked child may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver
from cuda.bindings.driver import CUresult

from mock_node import MockNode

NOT_INITIALIZED = CUresult.CUDA_ERROR_NOT_INITIALIZED


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("cuDeviceGetCount", ()),
        ("cuDeviceGet", (0,)),
        ("cuDeviceGetName", (64, 0)),
        ("cuDeviceTotalMem", (0,)),
        ("cuDevicePrimaryCtxRetain", (0,)),
        ("cuCtxGetCurrent", ()),
        ("cuCtxSynchronize", ()),
        ("cuMemAlloc", (16,)),
        ("cuMemFree", (16,)),
        ("cuMemGetInfo", ()),
        ("cuMemHostAlloc", (16, 0)),
        ("cuStreamCreate", (0,)),
        ("cuEventCreate", (0,)),
        ("cuModuleLoadData", (b".version 7.0\0",)),
    ],
)
def test_calls_before_init_are_refused(node: MockNode, call: str, arguments: tuple[object, ...]) -> None:
    assert getattr(node.process(device=None).code, call)(*arguments) == NOT_INITIALIZED


def test_version_and_error_texts_need_no_init(node: MockNode) -> None:
    process = node.process(device=None)
    assert process.cuDriverGetVersion() == (CUresult.CUDA_SUCCESS, 13000)
    assert process.ok.cuGetErrorName(CUresult.CUDA_ERROR_OUT_OF_MEMORY) == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert process.ok.cuGetErrorString(CUresult.CUDA_ERROR_OUT_OF_MEMORY) == b"out of memory"


def test_every_result_has_its_name(node: MockNode) -> None:
    process = node.process(device=None)
    for result in CUresult:
        code, name = process.cuGetErrorName(result)
        if code == CUresult.CUDA_SUCCESS:
            assert name.decode() == result.name
            assert process.ok.cuGetErrorString(result)
        else:
            assert code == CUresult.CUDA_ERROR_INVALID_VALUE
            assert result.name.removeprefix("CUDA_") not in NAMED


NAMED = {
    "SUCCESS", "ERROR_INVALID_VALUE", "ERROR_OUT_OF_MEMORY", "ERROR_NOT_INITIALIZED", "ERROR_DEINITIALIZED",
    "ERROR_NO_DEVICE", "ERROR_INVALID_DEVICE", "ERROR_INVALID_CONTEXT", "ERROR_INVALID_PTX", "ERROR_INVALID_HANDLE",
    "ERROR_ILLEGAL_STATE", "ERROR_NOT_FOUND", "ERROR_NOT_READY", "ERROR_ILLEGAL_ADDRESS", "ERROR_LAUNCH_FAILED",
    "ERROR_NOT_SUPPORTED", "ERROR_UNKNOWN",
}  # fmt: skip
"""The results that the mock gives, and their neighbours: these must have names."""


def test_init_takes_no_flags_and_may_be_repeated(node: MockNode) -> None:
    process = node.process(device=None)
    assert process.code.cuInit(1) == CUresult.CUDA_ERROR_INVALID_VALUE
    assert process.code.cuInit(0) == CUresult.CUDA_SUCCESS
    assert process.code.cuInit(0) == CUresult.CUDA_SUCCESS


def test_forked_child_of_an_initialised_process_is_refused_also_after_its_own_init(node: MockNode) -> None:
    parent = node.process()
    pointer = parent.ok.cuMemAlloc(4096)
    results = parent.fork(
        [("cuMemGetInfo", ()), ("cuMemAlloc", (4096,)), ("cuInit", (0,)), ("cuDeviceGetCount", ()),
         ("cuMemFree", (pointer,)), ("cuCtxSynchronize", ())])  # fmt: skip
    assert [result[0] for result in results] == [NOT_INITIALIZED] * 6
    parent.ok.cuMemsetD8(pointer, 7, 4096)  # the parent is as it was
    assert parent.ok.cuMemFree(pointer) is None


def test_child_forked_before_init_works(node: MockNode) -> None:
    parent = node.process(device=None)
    _, initialised, count = parent.fork([("cuDriverGetVersion", ()), ("cuInit", (0,)), ("cuDeviceGetCount", ())])
    assert (initialised[0], count) == (CUresult.CUDA_SUCCESS, (CUresult.CUDA_SUCCESS, 1))
    parent.ok.cuInit(0)
    assert parent.ok.cuDeviceGetCount() == 1


def test_exit_of_a_forked_child_takes_nothing_from_its_parent(node: MockNode) -> None:
    parent = node.process()
    pointer = parent.ok.cuMemAlloc(512 * 1024)
    for _ in range(3):
        parent.fork([("cuMemGetInfo", ())])
    other = node.process()
    assert other.code.cuMemAlloc(768 * 1024) == CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert parent.code.cuMemFree(pointer) == CUresult.CUDA_SUCCESS


def test_error_texts_are_those_of_the_documented_enum() -> None:
    assert driver.CUresult.CUDA_ERROR_NOT_READY == 600  # the enum that these tests compare with is the official one


@pytest.mark.parametrize("spec", ["1x1MiB", "4x2MiB"])
def test_count_follows_the_spec(new_node: Callable[..., MockNode], spec: str) -> None:
    process = new_node(spec).process(device=None)
    process.ok.cuInit(0)
    assert process.ok.cuDeviceGetCount() == int(spec[0])


