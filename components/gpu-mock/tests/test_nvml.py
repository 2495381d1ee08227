"""The NVML part: the same figures as the CUDA part, from a process that has only libnvidia-ml loaded."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable

import pynvml
import pytest

from kernels import Kernels
from mock_node import MockNode, MockProcess

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def monitor(node: MockNode) -> MockProcess:
    return start_monitor(node)


def start_monitor(node: MockNode) -> MockProcess:
    """A process that uses NVML and nothing else."""
    monitor = node.process(device=None)
    monitor.nvmlInit()
    return monitor


def handle(monitor: MockProcess, index: int = 0) -> int:
    return int(monitor.nvmlDeviceGetHandleByIndex(index))


def listed(monitor: MockProcess, index: int = 0) -> dict[int, int | None]:
    """Bytes by pid."""
    processes = monitor.nvmlDeviceGetComputeRunningProcesses(handle(monitor, index))
    return {process["pid"]: process["usedGpuMemory"] for process in processes}


def test_only_nvml_is_loaded(monitor: MockProcess) -> None:
    assert monitor.loaded() == ["libnvidia-ml.so.1"]


def test_calls_without_init_are_refused_and_inits_are_counted(node: MockNode) -> None:
    monitor = node.process(device=None)
    monitor.nvmlInit()
    monitor.nvmlInit()
    device = handle(monitor)
    monitor.nvmlShutdown()
    assert monitor.nvmlDeviceGetCount() == 1
    monitor.nvmlShutdown()
    for call, arguments in {
        "nvmlDeviceGetCount": (), "nvmlDeviceGetHandleByIndex": (0,), "nvmlDeviceGetName": (device,),
        "nvmlDeviceGetMemoryInfo": (device,), "nvmlDeviceGetUtilizationRates": (device,), "nvmlShutdown": (),
        "nvmlDeviceGetComputeRunningProcesses": (device,), "nvmlSystemGetDriverVersion": (),
    }.items():  # fmt: skip
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            getattr(monitor, call)(*arguments)


def test_no_gpus_means_no_driver(node: MockNode) -> None:
    monitor = node.process(device=None, environment={
        "TIMESLICE_GPU_MOCK_DIR": str(node.folder / "nothing"), "TIMESLICE_GPU_MOCK": ""})  # fmt: skip
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        monitor.nvmlInit()


def test_versions_agree_with_the_cuda_part(node: MockNode, monitor: MockProcess) -> None:
    process = node.process()
    assert monitor.nvmlSystemGetCudaDriverVersion() == process.ok.cuDriverGetVersion()
    driver_version = monitor.nvmlSystemGetDriverVersion()
    assert monitor.nvmlSystemGetNVMLVersion() == f"{process.ok.cuDriverGetVersion() // 1000}.{driver_version}"


def test_identity_agrees_with_the_cuda_part(new_node: Callable[..., MockNode]) -> None:
    node = new_node("3x1MiB")
    monitor, process = start_monitor(node), node.process()
    assert monitor.nvmlDeviceGetCount() == process.ok.cuDeviceGetCount() == 3
    uuids = set()
    for index in range(3):
        device = handle(monitor, index)
        assert monitor.nvmlDeviceGetIndex(device) == index
        assert monitor.nvmlDeviceGetName(device).encode() == process.ok.cuDeviceGetName(96, index).split(b"\0")[0]
        uuid = monitor.nvmlDeviceGetUUID(device)
        assert uuid.removeprefix("GPU-").replace("-", "") == process.ok.cuDeviceGetUuid(index).hex()
        uuids.add(uuid)
        pci = monitor.nvmlDeviceGetPciInfo(device)
        cuda_id = process.ok.cuDeviceGetPCIBusId(32, index).split(b"\0")[0].decode()
        assert int(cuda_id.split(":")[1], 16) == pci["bus"]
        assert pci["busId"].upper().endswith(cuda_id.upper())
        for bus_id in (pci["busId"], pci["busIdLegacy"], cuda_id):
            assert monitor.nvmlDeviceGetHandleByPciBusId(bus_id.encode()) == device
        assert monitor.nvmlDeviceGetHandleByUUID(uuid) == device
    assert len(uuids) == 3


def test_unknown_devices(monitor: MockProcess) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        monitor.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        monitor.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(pynvml.NVMLError_NotFound):
        monitor.nvmlDeviceGetHandleByPciBusId(b"00000000:7F:00.0")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        monitor.nvmlDeviceGetHandleByPciBusId(b"nonsense")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        monitor.nvmlDeviceGetName(0)


def test_memory_is_the_sum_over_processes(node: MockNode, monitor: MockProcess) -> None:
    first, second = node.process(), node.process()
    first.ok.cuMemAlloc(256 * KIB)
    second.ok.cuMemAlloc(64 * KIB)
    plain = monitor.nvmlDeviceGetMemoryInfo(handle(monitor))
    assert plain == {"total": MIB, "used": 320 * KIB, "free": MIB - 320 * KIB}
    versioned = monitor.nvmlDeviceGetMemoryInfo(handle(monitor), pynvml.nvmlMemory_v2)
    assert versioned == {**plain, "version": pynvml.nvmlMemory_v2, "reserved": 0}
    assert first.ok.cuMemGetInfo() == (plain["free"], plain["total"])
    assert listed(monitor) == {first.pid: 256 * KIB, second.pid: 64 * KIB}


def test_memory_info_of_an_unknown_version_is_refused(monitor: MockProcess) -> None:
    with pytest.raises(pynvml.NVMLError) as caught:
        monitor.nvmlDeviceGetMemoryInfo(handle(monitor), 0x03000028)
    assert caught.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_process_is_listed_on_the_devices_where_it_has_a_context(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x1MiB")
    monitor, process = start_monitor(node), node.process(device=None)
    process.ok.cuInit(0)
    assert (listed(monitor, 0), listed(monitor, 1)) == ({}, {})
    process.ok.cuDevicePrimaryCtxRetain(1)
    assert (listed(monitor, 0), listed(monitor, 1)) == ({}, {process.pid: 0})
    process.ok.cuDevicePrimaryCtxRelease(1)
    assert listed(monitor, 1) == {}


def test_locked_process_is_listed_and_a_saved_one_is_not(node: MockNode, monitor: MockProcess) -> None:
    agent, target = node.process(device=None), node.process()
    agent.ok.cuInit(0)
    target.ok.cuMemAlloc(64 * KIB)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    assert listed(monitor) == {target.pid: 64 * KIB}
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    assert listed(monitor) == {}
    assert monitor.nvmlDeviceGetMemoryInfo(handle(monitor))["used"] == 0
    agent.ok.cuCheckpointProcessRestore(target.pid, None)
    assert listed(monitor) == {target.pid: 64 * KIB}


@pytest.mark.parametrize("reaped", [True, False])
def test_killed_process_is_not_listed(node: MockNode, monitor: MockProcess, reaped: bool) -> None:
    target = node.process()
    target.ok.cuMemAlloc(64 * KIB)
    assert listed(monitor) == {target.pid: 64 * KIB}
    target.kill(reap=reaped)
    node.wait_until_gone(target)
    assert listed(monitor) == {}
    assert monitor.nvmlDeviceGetMemoryInfo(handle(monitor))["used"] == 0


def test_answers_while_others_are_stopped(node: MockNode, monitor: MockProcess) -> None:
    target = node.process()
    target.ok.cuMemAlloc(64 * KIB)
    Kernels(target).busy(10_000_000)
    target.signal(signal.SIGSTOP)
    assert listed(monitor) == {target.pid: 64 * KIB}
    assert monitor.nvmlDeviceGetMemoryInfo(handle(monitor))["used"] == 64 * KIB
    assert monitor.nvmlDeviceGetUtilizationRates(handle(monitor))["gpu"] >= 0


def test_process_sees_itself(node: MockNode) -> None:
    process = node.process()
    process.ok.cuMemAlloc(64 * KIB)
    process.nvmlInit()
    assert listed(process) == {process.pid: 64 * KIB}
    process.nvmlShutdown()
    assert process.ok.cuMemGetInfo()[0] == MIB - 64 * KIB  # and NVML has not cost it its place
    other = node.process()
    assert other.ok.cuMemGetInfo()[0] == MIB - 64 * KIB


# ---- all versions of the list


class _V1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_list_asks_for_enough_room(node: MockNode, monitor: MockProcess, version: str) -> None:
    call = f"nvmlDeviceGetComputeRunningProcesses{version}"
    unit = ctypes.sizeof(pynvml.c_nvmlProcessInfo_v2_t if version else _V1)
    device = handle(monitor)
    count, infos = monitor.host(4), monitor.host(3 * unit)

    def ask(room: int, at: int = infos) -> tuple[int, int]:
        monitor.poke(count, room.to_bytes(4, "little"))
        code = monitor.raw("libnvidia-ml.so.1", call, device, count, at)
        return code, int.from_bytes(monitor.peek(count, 4), "little")

    assert ask(0) == (pynvml.NVML_SUCCESS, 0)
    targets = [node.process() for _ in range(2)]
    for target, pages in zip(targets, (1, 2), strict=True):
        target.ok.cuMemAlloc(pages * 4096)
    assert ask(0) == ask(0, at=0) == ask(1) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2)
    assert ask(1, at=0)[0] == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert ask(3) == (pynvml.NVML_SUCCESS, 2)
    raw = monitor.peek(infos, 2 * unit)
    entries = [raw[:unit], raw[unit:]]
    got = {int.from_bytes(entry[:4], "little"): int.from_bytes(entry[8:16], "little") for entry in entries}
    assert got == {targets[0].pid: 4096, targets[1].pid: 8192}
    if version:
        assert all(entry[16:24] == b"\xff" * 8 for entry in entries)  # no MIG instance


# ---- utilisation


def utilization(monitor: MockProcess) -> int:
    return int(monitor.nvmlDeviceGetUtilizationRates(handle(monitor))["gpu"])


def test_idle_busy_and_idle_again(node: MockNode, monitor: MockProcess) -> None:
    process = node.process()
    kernels = Kernels(process)
    assert utilization(monitor) == 0
    kernels.busy(1_000_000)
    started = time.monotonic()
    while utilization(monitor) < 98:
        assert time.monotonic() < started + 0.95  # the window is a sixth of that, and the kernel longer
    process.ok.cuCtxSynchronize()
    while utilization(monitor) > 0:
        assert time.monotonic() < started + 5


def test_utilization_is_the_busy_share_of_the_window(node: MockNode, monitor: MockProcess) -> None:
    node.inject("set", "util-window-ms=1000")
    process = node.process()
    kernels = Kernels(process)
    for _ in range(10):
        kernels.busy(25_000)
    process.ok.cuCtxSynchronize()
    measured = utilization(monitor)
    busy_ns = sum(line["end_ns"] - line["begin_ns"] for line in node.journal() if line["kind"] == "kernel")
    assert abs(measured - busy_ns / 1e7) <= 3


def test_kernel_cut_off_by_a_kill_does_not_keep_the_device_busy(node: MockNode, monitor: MockProcess) -> None:
    process = node.process()
    Kernels(process).busy(60_000_000)
    node.wait_until_running(process)
    process.kill()
    deadline = time.monotonic() + 5
    while utilization(monitor) != 0:
        assert time.monotonic() < deadline


# ---- what is not imitated


def test_what_the_mock_does_not_know_is_said_so(monitor: MockProcess) -> None:
    device = handle(monitor)
    for call, arguments in {
        "nvmlDeviceGetTemperature": (device, 0), "nvmlDeviceGetPowerUsage": (device,),
        "nvmlDeviceGetMigMode": (device,), "nvmlDeviceGetClockInfo": (device, 0),
        "nvmlDeviceGetGraphicsRunningProcesses_v3": (device,),
    }.items():  # fmt: skip
        with pytest.raises(pynvml.NVMLError_NotSupported):
            getattr(monitor, call)(*arguments)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        monitor.nvmlDeviceGetFanSpeed(device)


def test_error_texts(monitor: MockProcess) -> None:
    for code, text in pynvml.NVMLError._errcode_to_string.items():
        assert monitor.nvmlErrorString(code) == text
    assert monitor.nvmlErrorString(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH) == "Argument version mismatch"
    assert monitor.nvmlErrorString(12345) == "Unknown Error"


def test_short_buffers_are_refused(monitor: MockProcess) -> None:
    buffer, device = monitor.host(80), handle(monitor)
    for call in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
        assert monitor.raw("libnvidia-ml.so.1", call, device, buffer, 3) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert monitor.raw("libnvidia-ml.so.1", call, device, 0, 80) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert monitor.raw("libnvidia-ml.so.1", call, device, buffer, 80) == pynvml.NVML_SUCCESS
    short = monitor.raw("libnvidia-ml.so.1", "nvmlSystemGetDriverVersion", buffer, 2)
    assert short == pynvml.NVML_ERROR_INSUFFICIENT_SIZE


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlInit_v2", "nvmlShutdown"])
def test_older_entry_points(node: MockNode, call: str) -> None:
    process = node.process(device=None)
    process.nvmlInit()
    assert process.raw("libnvidia-ml.so.1", call) == pynvml.NVML_SUCCESS


def test_older_names_of_the_same_calls(monitor: MockProcess) -> None:
    number, found, bus_id = monitor.host(8), monitor.host(8), monitor.host(b"0000:01:00.0\0")
    for call, arguments in {
        "nvmlDeviceGetCount": (number,), "nvmlSystemGetCudaDriverVersion": (number,),
        "nvmlDeviceGetHandleByIndex": (0, found), "nvmlDeviceGetHandleByPciBusId": (bus_id, found),
    }.items():  # fmt: skip
        assert monitor.raw("libnvidia-ml.so.1", call, *arguments) == pynvml.NVML_SUCCESS, call
    assert int.from_bytes(monitor.peek(found, 8), "little") == handle(monitor)


def test_unknown_init_flags_are_refused(node: MockNode) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        node.process(device=None).nvmlInitWithFlags(4)


def test_forked_child_goes_on_reading(node: MockNode, monitor: MockProcess) -> None:
    target = node.process()
    target.ok.cuMemAlloc(64 * KIB)
    device = handle(monitor)
    [memory, processes] = monitor.fork(
        [("nvmlDeviceGetMemoryInfo", (device,)), ("nvmlDeviceGetComputeRunningProcesses", (device,))])
    assert memory["used"] == 64 * KIB
    assert [process["pid"] for process in processes] == [target.pid]
    assert listed(monitor) == {target.pid: 64 * KIB}
