"""Which devices a process sees, where a restore puts it, and what happens at the limits of the machine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pynvml
import pytest
from cuda.bindings.driver import CUresult

from kernels import Kernels
from mock_actor import Struct
from mock_node import MockNode, MockProcess, ProcessEnded

KIB, MIB = 1 << 10, 1 << 20
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


@pytest.mark.parametrize(
    ("visible", "sizes"),
    [("0", [0]), ("1,0", [1, 0]), ("1", [1]), ("2,7,0", [2]), ("UUID 1", [1]), ("UUID 2,0", [2, 0])],
)
def test_visible_devices(new_node: Callable[..., MockNode], visible: str, sizes: list[int]) -> None:
    node = new_node("3x1MiB")
    uuids = [device["uuid"] for device in json.loads(node.control("show", "--json"))["devices"]]
    for index in range(3):
        visible = visible.replace(f"UUID {index}", uuids[index])
    process = node.process(environment={"CUDA_VISIBLE_DEVICES": visible})
    assert process.ok.cuDeviceGetCount() == len(sizes)
    seen = [process.ok.cuDeviceGetUuid(ordinal).hex() for ordinal in range(len(sizes))]
    assert seen == [uuids[index].removeprefix("GPU-").replace("-", "") for index in sizes]


@pytest.mark.parametrize("visible", ["", "-1", "9", "nonsense"])
def test_no_visible_device(new_node: Callable[..., MockNode], visible: str) -> None:
    process = new_node("2x1MiB").process(device=None, environment={"CUDA_VISIBLE_DEVICES": visible})
    assert process.code.cuInit(0) == CUresult.CUDA_ERROR_NO_DEVICE


@pytest.mark.parametrize(
    ("granted", "visible", "seen"),
    [
        ([2], None, [2]), ([2, 0], None, [0, 2]), ([2, 0], "1", [2]),
        ([2, 0], "2", []), ([1], "UUID 0", []), ([7], None, []),
    ],
)  # fmt: skip
def test_a_process_has_the_devices_that_it_was_granted(
    new_node: Callable[..., MockNode], granted: list[int], visible: str | None, seen: list[int]
) -> None:
    """As in a container with some of a machine's GPUs: others do not exist in CUDA and NVML; indices start at 0."""
    node = new_node("3x1MiB")
    uuids = [device["uuid"] for device in json.loads(node.control("show", "--json"))["devices"]]
    uuids += ["GPU-of another machine"] * 7
    environment = {f"TIMESLICE_GPU_MOCK_GRANT_{index}": uuids[index] for index in granted}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible.replace("UUID 0", uuids[0])
    process = node.process(device=None, environment=environment)
    process.nvmlInit()
    granted_uuids = [uuids[index] for index in sorted(granted) if index < 3]
    assert process.nvmlDeviceGetCount() == len(granted_uuids)
    handles = [process.nvmlDeviceGetHandleByIndex(index) for index in range(len(granted_uuids))]
    assert [process.nvmlDeviceGetUUID(handle) for handle in handles] == granted_uuids
    for index in set(range(3)) - set(granted):
        with pytest.raises(pynvml.NVMLError_NotFound):
            process.nvmlDeviceGetHandleByUUID(uuids[index])
    if not seen:
        assert process.code.cuInit(0) == CUresult.CUDA_ERROR_NO_DEVICE
        return
    process.ok.cuInit(0)
    found = [process.ok.cuDeviceGetUuid(ordinal).hex() for ordinal in range(process.ok.cuDeviceGetCount())]
    assert found == [uuids[index].removeprefix("GPU-").replace("-", "") for index in seen]


def test_memory_and_processes_of_a_granted_device_are_its_own(new_node: Callable[..., MockNode]) -> None:
    node = new_node("3x1MiB")
    uuids = [device["uuid"] for device in json.loads(node.control("show", "--json"))["devices"]]
    process = node.process(device=0, environment={"TIMESLICE_GPU_MOCK_GRANT_2": uuids[2]})
    process.ok.cuMemAlloc(64 * KIB)
    process.nvmlInit()
    handle = process.nvmlDeviceGetHandleByIndex(0)
    assert used(node) == [0, 0, 64 * KIB]
    assert process.nvmlDeviceGetMemoryInfo(handle)["used"] == 64 * KIB
    assert [one["pid"] for one in process.nvmlDeviceGetComputeRunningProcesses(handle)] == [process.pid]


def used(node: MockNode) -> list[int]:
    return [device["used_bytes"] for device in json.loads(node.control("show", "--json"))["devices"]]


def restore_args(agent: MockProcess, *pairs: tuple[int, int]) -> Struct:
    uuids = [agent.ok.cuDeviceGetUuid(device) for device in range(3)]
    as_uuid = [Struct("CUuuid", raw=uuid) for uuid in uuids]
    made = [Struct("CUcheckpointGpuPair", oldUuid=as_uuid[old], newUuid=as_uuid[new]) for old, new in pairs]
    return Struct("CUcheckpointRestoreArgs", gpuPairs=made, gpuPairsCount=len(made))


def test_restore_onto_another_gpu(new_node: Callable[..., MockNode]) -> None:
    node = new_node("3x1MiB")
    agent, target = node.process(device=None), node.process(device=0)
    agent.ok.cuInit(0)
    pointer = target.ok.cuMemAlloc(64 * KIB)
    target.ok.cuMemsetD8(pointer, 0x66, 64 * KIB)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    # Documented: "If an array of GPU UUID pairs is specified, it must contain every checkpointed GPU."
    assert agent.code.cuCheckpointProcessRestore(target.pid, restore_args(agent, (1, 2), (2, 1))) == INVALID_VALUE
    assert used(node) == [0, 0, 0]
    agent.ok.cuCheckpointProcessRestore(target.pid, restore_args(agent, (0, 2), (2, 0)))
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    assert used(node) == [0, 0, 64 * KIB]
    back = target.host(64 * KIB)
    target.ok.cuMemcpyDtoH(back, pointer, 64 * KIB)
    assert target.peek(back, 64 * KIB) == b"\x66" * 64 * KIB
    Kernels(target).busy(10)
    target.ok.cuCtxSynchronize()
    assert [line["device"] for line in node.journal() if line["kind"] == "kernel"] == [2]


# ---- limits


def test_full_machine_is_an_error_code_and_no_signal(node: MockNode) -> None:
    """Device memory is a file: where its pages cannot be had, writing says so."""
    process = node.process()
    pointer = process.ok.cuMemAlloc(MIB)
    process.limit_file_size(512 * KIB)
    assert process.code.cuMemsetD8(pointer, 1, MIB) == CUresult.CUDA_ERROR_OPERATING_SYSTEM
    process.limit_file_size(-1)
    process.ok.cuMemFree(pointer)


def test_process_that_replaces_itself_loses_what_it_had(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x4MiB")
    process, other = node.process(), node.process()
    process.ok.cuMemAlloc(4 * MIB)
    replaced = process.begin("become", ["sleep", "60"])
    with pytest.raises(ProcessEnded):
        replaced.result()
    other.ok.cuMemFree(other.ok.cuMemAlloc(4 * MIB))


def test_more_processes_than_there_are_places(node: MockNode) -> None:
    processes = []
    for _ in range(256):
        processes.append(node.process(device=None))
        processes[-1].ok.cuInit(0)
    late = node.process(device=None)
    assert late.code.cuInit(0) == CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
    processes[100].kill()
    assert late.code.cuInit(0) == CUresult.CUDA_SUCCESS


def test_more_allocations_than_there_are_records(new_node: Callable[..., MockNode]) -> None:
    process = new_node("1x80GiB").process()
    before = process.ok.cuMemGetInfo()
    [results] = process.repeat(4096, [("cuMemAlloc", (1,))])
    assert {code for code, _ in results} == {CUresult.CUDA_SUCCESS}
    assert process.code.cuMemAlloc(1) == CUresult.CUDA_ERROR_OUT_OF_MEMORY
    for _, pointer in results:
        process.ok.cuMemFree(pointer)
    assert process.ok.cuMemGetInfo() == before
