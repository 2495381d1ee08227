"""What a checkpoint moves: device memory into the target's own memory and back, bit for bit; and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUprocessState, CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, state_of

KIB, MIB = 1 << 10, 1 << 20
SUCCESS = CUresult.CUDA_SUCCESS
OUT_OF_MEMORY = CUresult.CUDA_ERROR_OUT_OF_MEMORY
ILLEGAL_ADDRESS = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
LOCKED = CUprocessState.CU_PROCESS_STATE_LOCKED
CHECKPOINTED = CUprocessState.CU_PROCESS_STATE_CHECKPOINTED


@pytest.fixture
def agent(node: MockNode) -> MockProcess:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    return agent


def save(agent: MockProcess, target: MockProcess) -> None:
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)


def bring_back(agent: MockProcess, target: MockProcess) -> None:
    agent.ok.cuCheckpointProcessRestore(target.pid, None)
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)


def read(process: MockProcess, pointer: int, size: int) -> bytes:
    back = process.host(size)
    process.ok.cuMemcpyDtoH(back, pointer, size)
    return bytes(process.peek(back, size))


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * KIB for line in status if line.startswith("RssAnon"))


def test_contents_and_addresses_survive_another_process_on_the_device(node: MockNode, agent: MockProcess) -> None:
    first, second = node.process(), node.process()
    contents: dict[int, bytes] = {}
    for number, size in enumerate([1, 4096, 5000, 300 * KIB, 600 * KIB - 8192]):
        pointer = first.ok.cuMemAlloc(size)
        contents[pointer] = random.Random(number).randbytes(size)
        first.ok.cuMemcpyHtoD(pointer, first.host(contents[pointer]), size)
    save(agent, first)
    pointer = second.ok.cuMemAlloc(MIB)
    second.ok.cuMemsetD8(pointer, 0xEE, MIB)
    second.ok.cuMemFree(pointer)
    bring_back(agent, first)
    for pointer, content in contents.items():
        assert read(first, pointer, len(content)) == content


def test_device_is_free_while_saved_and_restore_needs_room(node: MockNode, agent: MockProcess) -> None:
    first, second = node.process(), node.process()
    for value in (1, 2, 3):
        first.ok.cuMemsetD8(first.ok.cuMemAlloc(256 * KIB), value, 256 * KIB)
    save(agent, first)
    assert second.ok.cuMemGetInfo() == (MIB, MIB)
    pointer = second.ok.cuMemAlloc(512 * KIB)
    assert agent.code.cuCheckpointProcessRestore(first.pid, None) == OUT_OF_MEMORY
    assert second.ok.cuMemGetInfo() == (512 * KIB, MIB)  # nothing was taken half
    assert state_of(agent, first.pid) == CHECKPOINTED
    second.ok.cuMemFree(pointer)
    bring_back(agent, first)
    assert second.ok.cuMemGetInfo() == (256 * KIB, MIB)


def test_restore_leaves_the_process_locked(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    target.ok.cuMemAlloc(4096)
    save(agent, target)
    agent.ok.cuCheckpointProcessRestore(target.pid, None)
    assert state_of(agent, target.pid) == LOCKED
    assert target.begin("cuMemAlloc", 4096).is_blocked_for(0.1)


def test_saved_pages_are_the_targets_memory(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x64MiB")
    agent, target = node.process(), node.process()
    pointer = target.ok.cuMemAlloc(48 * MIB)
    target.ok.cuMemsetD8(pointer, 1, 48 * MIB)
    target.ok.cuCtxSynchronize()
    before, agent_before = resident_bytes(target.pid), resident_bytes(agent.pid)
    save(agent, target)
    assert resident_bytes(target.pid) - before > 40 * MIB
    assert resident_bytes(agent.pid) - agent_before < 4 * MIB
    assert (node.folder / "device0").stat().st_blocks * 512 < MIB  # and the device's own pages are gone
    bring_back(agent, target)
    assert resident_bytes(target.pid) - before < 8 * MIB


def test_untouched_memory_costs_nothing_to_save(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x80GiB")
    agent, target = node.process(), node.process()
    pointer = target.ok.cuMemAlloc(64 << 30)
    target.ok.cuMemsetD8(pointer + (32 << 30), 7, 4096)
    target.ok.cuCtxSynchronize()
    before = resident_bytes(target.pid)
    save(agent, target)
    assert resident_bytes(target.pid) - before < 64 * MIB
    bring_back(agent, target)
    assert read(target, pointer + (32 << 30), 4096) == b"\7" * 4096
    assert read(target, pointer, 4096) == bytes(4096)


def test_events_and_streams_survive(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    kernels = Kernels(target)
    stream, event = target.ok.cuStreamCreate(1), target.ok.cuEventCreate(0)
    kernels.busy(1_000, stream)
    target.ok.cuEventRecord(event, stream)
    save(agent, target)
    bring_back(agent, target)
    assert target.code.cuEventQuery(event) == SUCCESS
    kernels.busy(1_000, stream)
    target.ok.cuStreamSynchronize(stream)


def test_pinned_memory_keeps_its_address_and_contents(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    pinned = target.ok.cuMemHostAlloc(64 * KIB, 0)
    target.poke(pinned, b"pinned memory")
    save(agent, target)
    bring_back(agent, target)
    assert target.peek(pinned, 13) == b"pinned memory"
    target.ok.cuMemFreeHost(pinned)


def test_save_without_host_memory_changes_nothing(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x64MiB")
    agent, target = node.process(), node.process()
    pointer = target.ok.cuMemAlloc(48 * MIB)
    target.ok.cuMemsetD8(pointer, 5, 48 * MIB)
    target.ok.cuCtxSynchronize()
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    target.limit_memory(16 * MIB)
    assert agent.code.cuCheckpointProcessCheckpoint(target.pid, None) != SUCCESS
    target.limit_memory(-1)
    assert state_of(agent, target.pid) == LOCKED
    assert agent.ok.cuMemGetInfo()[0] == 16 * MIB
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    assert read(target, pointer, 48 * MIB) == b"\5" * 48 * MIB
