"""Copies and memsets, synchronous and asynchronous: what arrives is what was sent, bit for bit and in order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess

KIB = 1 << 10


def read(process: MockProcess, pointer: int, size: int) -> bytes:
    back = process.host(size)
    process.ok.cuMemcpyDtoH(back, pointer, size)
    return bytes(process.peek(back, size))


@pytest.fixture
def process(node: MockNode) -> MockProcess:
    return node.process()


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 4095), (4095, 2), (4096, 4096), (123, 40_000), (0, 65_536)])
def test_in_and_out_again(process: MockProcess, offset: int, size: int) -> None:
    pointer = process.ok.cuMemAlloc(64 * KIB)
    content = random.Random(size).randbytes(size)
    process.ok.cuMemcpyHtoD(pointer + offset, process.host(content), size)
    whole = read(process, pointer, 64 * KIB)
    assert whole[offset : offset + size] == content
    assert whole[:offset] + whole[offset + size :] == bytes(64 * KIB - size)


def test_device_to_device_and_by_generic_copy(process: MockProcess) -> None:
    first, second = process.ok.cuMemAlloc(8 * KIB), process.ok.cuMemAlloc(8 * KIB)
    content = random.Random(1).randbytes(8 * KIB)
    process.ok.cuMemcpy(first, process.host(content), 8 * KIB)  # unified addressing: any pointer
    process.ok.cuMemcpyDtoD(second, first, 8 * KIB)
    assert read(process, second, 8 * KIB) == content


def test_between_devices(new_node: Callable[..., MockNode]) -> None:
    process = new_node("2x1MiB").process(device=0)
    first = process.ok.cuMemAlloc(8 * KIB)
    source_context = process.ok.cuCtxGetCurrent()
    target_context = process.ok.cuDevicePrimaryCtxRetain(1)
    process.ok.cuCtxSetCurrent(target_context)
    second = process.ok.cuMemAlloc(8 * KIB)
    content = random.Random(2).randbytes(8 * KIB)
    process.ok.cuMemcpyHtoD(first, process.host(content), 8 * KIB)
    process.ok.cuMemcpyPeer(second, target_context, first, source_context, 8 * KIB)
    assert read(process, second, 8 * KIB) == content


@pytest.mark.parametrize(("call", "value", "unit"), [("D8", 0xA5, 1), ("D16", 0xBEEF, 2), ("D32", 0xDEADBEEF, 4)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_memset(process: MockProcess, call: str, value: int, unit: int, asynchronous: bool) -> None:
    pointer = process.ok.cuMemAlloc(32 * KIB)
    arguments = (pointer + 4 * unit, value, 5_000)
    if asynchronous:
        stream = process.ok.cuStreamCreate(0)
        getattr(process.ok, f"cuMemset{call}Async")(*arguments, stream)
        process.ok.cuStreamSynchronize(stream)
    else:
        getattr(process.ok, f"cuMemset{call}")(*arguments)
        process.ok.cuCtxSynchronize()
    expected = bytearray(32 * KIB)
    expected[4 * unit : 4 * unit + 5_000 * unit] = value.to_bytes(unit, "little") * 5_000
    assert read(process, pointer, 32 * KIB) == expected


def test_asynchronous_copies_of_one_stream_happen_in_order(process: MockProcess) -> None:
    pointer, other = process.ok.cuMemAlloc(64 * KIB), process.ok.cuMemAlloc(64 * KIB)
    stream = process.ok.cuStreamCreate(1)
    pinned = process.ok.cuMemHostAlloc(64 * KIB, 0)
    for round_number in range(20):
        content = random.Random(round_number).randbytes(64 * KIB)
        process.poke(pinned, content)
        process.ok.cuMemsetD8Async(pointer, 0xFF, 64 * KIB, stream)
        process.ok.cuMemcpyHtoDAsync(pointer, pinned, 64 * KIB, stream)
        process.ok.cuMemcpyDtoDAsync(other, pointer, 64 * KIB, stream)
        process.ok.cuMemsetD8Async(pointer, 0, 64 * KIB, stream)
        process.ok.cuMemcpyDtoHAsync(pinned, other, 64 * KIB, stream)
        process.ok.cuStreamSynchronize(stream)
        assert process.peek(pinned, 64 * KIB) == content


def test_copy_waits_for_work_submitted_before_it_on_the_default_stream(process: MockProcess) -> None:
    pointer = process.ok.cuMemAlloc(64 * KIB)
    for value in range(1, 50):
        process.ok.cuMemsetD8Async(pointer, value, 64 * KIB, 0)
        assert read(process, pointer + 64 * KIB - 1, 1) == bytes([value])


def test_pageable_source_may_be_changed_as_soon_as_the_call_returns(process: MockProcess) -> None:
    """Documented ("API synchronization behavior"): pageable memory is staged before the call returns."""
    pointer, source = process.ok.cuMemAlloc(64 * KIB), process.host(b"\x0a" * 64 * KIB)
    stream = process.ok.cuStreamCreate(1)
    Kernels(process).busy(30_000, stream)
    process.ok.cuMemcpyHtoDAsync(pointer, source, 64 * KIB, stream)
    process.poke(source, b"\x0b" * 64 * KIB)
    process.ok.cuStreamSynchronize(stream)
    assert read(process, pointer, 64 * KIB) == b"\x0a" * 64 * KIB


def test_pinned_source_is_read_when_its_turn_comes(process: MockProcess) -> None:
    pointer, source = process.ok.cuMemAlloc(64 * KIB), process.ok.cuMemHostAlloc(64 * KIB, 0)
    stream = process.ok.cuStreamCreate(1)
    Kernels(process).busy(30_000, stream)
    process.ok.cuMemcpyHtoDAsync(pointer, source, 64 * KIB, stream)
    process.poke(source, b"\x0b" * 64 * KIB)
    process.ok.cuStreamSynchronize(stream)
    assert read(process, pointer, 64 * KIB) == b"\x0b" * 64 * KIB


def test_pageable_target_is_filled_when_the_call_returns(process: MockProcess) -> None:
    pointer, target = process.ok.cuMemAlloc(64 * KIB), process.host(64 * KIB)
    process.ok.cuMemsetD8(pointer, 9, 64 * KIB)
    stream = process.ok.cuStreamCreate(1)
    Kernels(process).busy(30_000, stream)
    process.ok.cuMemcpyDtoHAsync(target, pointer, 64 * KIB, stream)
    assert process.peek(target, 64 * KIB) == b"\x09" * 64 * KIB


def test_copy_of_nothing_is_fine(process: MockProcess) -> None:
    pointer = process.ok.cuMemAlloc(16)
    assert process.code.cuMemcpyHtoD(pointer, process.host(16), 0) == CUresult.CUDA_SUCCESS


def test_unknown_pointers_are_refused(process: MockProcess) -> None:
    host = process.host(16)
    wrong = (CUresult.CUDA_ERROR_INVALID_VALUE, CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    assert process.code.cuMemcpyHtoD(0x1000, host, 16) in wrong
    assert process.code.cuMemcpyDtoH(host, 0x1000, 16) in wrong
    assert process.code.cuMemsetD8(0x1000, 0, 16) in wrong
