"""Device memory: all processes share its size, the dead give theirs back, and freed ranges cannot be read."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUmemorytype, CUpointer_attribute, CUresult

from mock_node import MockNode

KIB, MIB = 1 << 10, 1 << 20
OUT_OF_MEMORY = CUresult.CUDA_ERROR_OUT_OF_MEMORY
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE
ILLEGAL_ADDRESS = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
SUCCESS = CUresult.CUDA_SUCCESS


def test_device_ends_at_its_size(node: MockNode) -> None:
    process = node.process()
    assert process.ok.cuMemGetInfo() == (MIB, MIB)
    assert process.code.cuMemAlloc(MIB + 1) == OUT_OF_MEMORY
    pointer = process.ok.cuMemAlloc(MIB)
    assert process.ok.cuMemGetInfo() == (0, MIB)
    assert process.code.cuMemAlloc(1) == OUT_OF_MEMORY
    process.ok.cuMemFree(pointer)
    assert process.ok.cuMemGetInfo() == (MIB, MIB)


def test_two_processes_share_the_size(node: MockNode) -> None:
    first, second = node.process(), node.process()
    first.ok.cuMemAlloc(640 * KIB)
    assert second.code.cuMemAlloc(512 * KIB) == OUT_OF_MEMORY
    assert second.ok.cuMemGetInfo() == (384 * KIB, MIB)
    second.ok.cuMemAlloc(384 * KIB)
    assert first.ok.cuMemGetInfo() == (0, MIB)


@pytest.mark.parametrize("ending", ["killed", "exits", "zombie"])
def test_dead_process_gives_its_memory_back(node: MockNode, ending: str) -> None:
    first, second = node.process(), node.process()
    first.ok.cuMemAlloc(MIB)
    assert second.code.cuMemAlloc(MIB) == OUT_OF_MEMORY
    if ending == "exits":
        first.end()
    else:
        first.kill(reap=ending == "killed")
        if ending == "zombie":
            node.wait_until_gone(first)
    second.ok.cuMemAlloc(MIB)


def test_stopped_process_keeps_its_memory(node: MockNode) -> None:
    first, second = node.process(), node.process()
    first.ok.cuMemAlloc(MIB)
    first.signal(signal.SIGSTOP)
    assert second.code.cuMemAlloc(4 * KIB) == OUT_OF_MEMORY
    first.signal(signal.SIGCONT)


def test_bad_sizes_and_pointers(node: MockNode) -> None:
    process = node.process()
    pointer = process.ok.cuMemAlloc(8 * KIB)
    assert process.code.cuMemAlloc(0) == INVALID_VALUE
    assert process.code.cuMemFree(pointer + 256) == INVALID_VALUE
    assert process.code.cuMemFree(0xDEAD0000) == INVALID_VALUE
    process.ok.cuMemFree(pointer)
    assert process.code.cuMemFree(pointer) == INVALID_VALUE
    assert process.code.cuMemFree(0) == SUCCESS  # as with the real driver, freeing NULL does nothing


def test_pointers_of_one_process_mean_nothing_in_another(node: MockNode) -> None:
    first, second = node.process(), node.process()
    pointer = first.ok.cuMemAlloc(4 * KIB)
    assert second.code.cuMemFree(pointer) == INVALID_VALUE
    assert first.code.cuMemFree(pointer) == SUCCESS


def test_address_range_and_attributes_of_a_pointer(node: MockNode) -> None:
    process = node.process()
    pointer = process.ok.cuMemAlloc(10_000)
    assert process.ok.cuMemGetAddressRange(pointer + 5_000) == (pointer, 10_000)
    assert process.code.cuMemGetAddressRange(pointer + 8 * MIB) == CUresult.CUDA_ERROR_NOT_FOUND
    kind = CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert process.ok.cuPointerGetAttribute(kind, pointer) == CUmemorytype.CU_MEMORYTYPE_DEVICE


@pytest.mark.parametrize("call", ["copy in", "copy out", "memset"])
def test_access_after_free_is_illegal_and_stands_in_the_journal(node: MockNode, call: str) -> None:
    process = node.process()
    pointer = process.ok.cuMemAlloc(64 * KIB)
    host = process.host(64 * KIB)
    process.ok.cuMemFree(pointer)
    code = {
        "copy in": lambda: process.code.cuMemcpyHtoD(pointer, host, 16),
        "copy out": lambda: process.code.cuMemcpyDtoH(host, pointer, 16),
        "memset": lambda: process.code.cuMemsetD8(pointer, 1, 16),
    }[call]()
    assert code == ILLEGAL_ADDRESS
    [line] = [line for line in node.journal() if line["kind"] == "illegal"]
    assert (line["pid"], line["address"]) == (process.pid, pointer)


def test_access_past_the_end_is_refused(node: MockNode) -> None:
    process = node.process()
    pointer = process.ok.cuMemAlloc(4 * KIB)
    host = process.host(64 * KIB)
    assert process.code.cuMemcpyHtoD(pointer + 2 * KIB, host, 4 * KIB) in (INVALID_VALUE, ILLEGAL_ADDRESS)


def test_fragmented_memory_is_still_usable_whole(node: MockNode) -> None:
    process = node.process()
    pieces = [process.ok.cuMemAlloc(64 * KIB) for _ in range(16)]
    for piece in pieces[::2]:
        process.ok.cuMemFree(piece)
    pointer = process.ok.cuMemAlloc(512 * KIB)  # virtual memory: no gap of that size is needed
    content = bytes(range(256)) * 2 * KIB
    process.ok.cuMemcpyHtoD(pointer, process.host(content), len(content))
    back = process.host(len(content))
    process.ok.cuMemcpyDtoH(back, pointer, len(content))
    assert process.peek(back, len(content)) == content


def test_fresh_memory_holds_nothing_of_another_process(node: MockNode) -> None:
    first = node.process()
    pointer = first.ok.cuMemAlloc(MIB)
    first.ok.cuMemsetD8(pointer, 0xAA, MIB)
    first.kill()
    second = node.process()
    pointer = second.ok.cuMemAlloc(MIB)
    back = second.host(MIB)
    second.ok.cuMemcpyDtoH(back, pointer, MIB)
    assert second.peek(back, MIB) == bytes(MIB)


def test_huge_device_costs_nothing_until_written(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x80GiB")
    process = node.process()
    pointer = process.ok.cuMemAlloc(79 << 30)
    last = pointer + (79 << 30) - 8
    process.ok.cuMemcpyHtoD(last, process.host(b"the end!"), 8)
    back = process.host(8)
    process.ok.cuMemcpyDtoH(back, last, 8)
    assert process.peek(back, 8) == b"the end!"
    assert sum(file.stat().st_blocks * 512 for file in node.folder.iterdir()) < 16 * MIB


def test_freed_pages_go_back_to_the_machine(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x64MiB")
    process = node.process()
    pointer = process.ok.cuMemAlloc(64 * MIB)
    process.ok.cuMemsetD8(pointer, 1, 64 * MIB)
    process.ok.cuCtxSynchronize()
    device = node.folder / "device0"
    assert device.stat().st_blocks * 512 >= 64 * MIB
    process.ok.cuMemFree(pointer)
    assert device.stat().st_blocks * 512 < MIB


def test_pinned_host_memory(node: MockNode) -> None:
    process = node.process()
    before = process.ok.cuMemGetInfo()
    pinned = process.ok.cuMemHostAlloc(64 * KIB, 0)
    process.poke(pinned, b"pinned")
    pointer = process.ok.cuMemAlloc(64 * KIB)
    process.ok.cuMemcpyHtoD(pointer, pinned, 6)
    second = process.ok.cuMemAllocHost(16)
    process.ok.cuMemcpyDtoH(second, pointer, 6)
    assert process.peek(second, 6) == b"pinned"
    assert process.ok.cuMemGetInfo()[0] == before[0] - 64 * KIB  # host memory takes nothing from the device
    process.ok.cuMemFreeHost(pinned)
    process.ok.cuMemFreeHost(second)
    assert process.code.cuMemFreeHost(pinned) == INVALID_VALUE
    assert process.code.cuMemFreeHost(process.host(16)) == INVALID_VALUE


def test_registered_host_memory(node: MockNode) -> None:
    process = node.process()
    buffer = process.host(64 * KIB)
    process.ok.cuMemHostRegister(buffer, 64 * KIB, 0)
    assert process.code.cuMemHostRegister(buffer, 64 * KIB, 0) == CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    process.ok.cuMemHostUnregister(buffer)
    assert process.code.cuMemHostUnregister(buffer) == CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
