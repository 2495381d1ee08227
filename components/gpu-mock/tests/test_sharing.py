"""What the driver's checkpoint cannot save: memory that is shared between processes, or managed.

Documented by NVIDIA/cuda-checkpoint ("does not support UVM or IPC memory"): Checkpoint says NOT_SUPPORTED, and the
process stays locked and can be unlocked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings.driver import (
    CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType,
    CUmemAllocationType,
    CUmemLocationType,
    CUpointer_attribute,
    CUprocessState,
    CUresult,
)

from mock_actor import Struct
from mock_node import MockNode, MockProcess, state_of

KIB, MIB = 1 << 10, 1 << 20
SUCCESS = CUresult.CUDA_SUCCESS
NOT_SUPPORTED = CUresult.CUDA_ERROR_NOT_SUPPORTED
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE
FILE_DESCRIPTOR = CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
INTERPROCESS_EVENT = 2 | 4  # CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS


@pytest.fixture
def node(new_node: Callable[..., MockNode]) -> MockNode:
    return new_node("1x16MiB")


@pytest.fixture
def target(node: MockNode) -> MockProcess:
    return node.process()


@pytest.fixture
def agent(node: MockNode) -> MockProcess:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    return agent


def exportable(device: int = 0) -> Struct:
    return Struct(
        "CUmemAllocationProp", type=CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes=FILE_DESCRIPTOR,
        location=Struct("CUmemLocation", type=CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, id=device),
    )  # fmt: skip


def is_saveable(agent: MockProcess, target: MockProcess) -> bool:
    """Try a whole round; a process that cannot be saved must come out of it running."""
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    code = agent.code.cuCheckpointProcessCheckpoint(target.pid, None)
    if code == SUCCESS:
        agent.ok.cuCheckpointProcessRestore(target.pid, None)
    else:
        assert code == NOT_SUPPORTED
        assert state_of(agent, target.pid) == CUprocessState.CU_PROCESS_STATE_LOCKED
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    return bool(code == SUCCESS)


def test_managed_memory(agent: MockProcess, target: MockProcess) -> None:
    assert is_saveable(agent, target)
    pointer = target.ok.cuMemAllocManaged(4 * KIB, 1)
    assert not is_saveable(agent, target)
    target.poke(pointer, b"from the host")
    back = target.host(13)
    target.ok.cuMemcpyDtoH(back, pointer, 13)
    assert target.peek(back, 13) == b"from the host"
    assert target.ok.cuPointerGetAttribute(CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer)
    target.ok.cuMemFree(pointer)
    assert is_saveable(agent, target)


def test_memory_handle_for_another_process(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    pointer = target.ok.cuMemAlloc(4 * KIB)
    target.ok.cuIpcGetMemHandle(pointer)
    assert not is_saveable(agent, target)
    assert target.code.cuIpcGetMemHandle(pointer + 8 * MIB) == INVALID_VALUE


def test_event_handle_for_another_process(agent: MockProcess, target: MockProcess) -> None:
    plain = target.ok.cuEventCreate(0)
    assert target.code.cuIpcGetEventHandle(plain) != SUCCESS
    assert is_saveable(agent, target)
    target.ok.cuIpcGetEventHandle(target.ok.cuEventCreate(INTERPROCESS_EVENT))
    assert not is_saveable(agent, target)


def test_exported_virtual_memory(agent: MockProcess, target: MockProcess) -> None:
    granularity = target.ok.cuMemGetAllocationGranularity(
        exportable(), CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM)  # fmt: skip
    before, _ = target.ok.cuMemGetInfo()
    handle = target.ok.cuMemCreate(2 * granularity, exportable(), 0)
    assert target.ok.cuMemGetInfo()[0] == before - 2 * granularity
    assert is_saveable(agent, target)
    assert target.cuMemExportToShareableHandle(handle, FILE_DESCRIPTOR, 0)[0] == SUCCESS
    assert not is_saveable(agent, target)
    target.ok.cuMemRelease(handle)
    assert target.ok.cuMemGetInfo()[0] == before


def test_wrong_virtual_memory(target: MockProcess) -> None:
    assert target.code.cuMemCreate(1000, exportable(), 0) == INVALID_VALUE
    assert target.code.cuMemCreate(2 * MIB, exportable(7), 0) == CUresult.CUDA_ERROR_INVALID_DEVICE
    assert target.code.cuMemCreate(64 * MIB, exportable(), 0) == CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert target.code.cuMemRelease(target.ok.cuMemAlloc(4 * KIB)) == INVALID_VALUE
    handle = target.ok.cuMemCreate(2 * MIB, exportable(), 0)
    assert target.code.cuMemFree(handle) == INVALID_VALUE  # it is no address
    ordinal = CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert target.code.cuPointerGetAttribute(ordinal, handle) == INVALID_VALUE
    target.ok.cuMemRelease(handle)


def test_opening_shared_memory_is_not_built_and_says_so(node: MockNode, target: MockProcess) -> None:
    handle = target.begin("cuIpcGetMemHandle", target.ok.cuMemAlloc(4 * KIB)).result()
    assert handle[0] == SUCCESS
    importer = node.process()
    opened = importer.cuIpcOpenMemHandle(Struct("CUipcMemHandle"), 1)
    assert opened[0] == NOT_SUPPORTED
