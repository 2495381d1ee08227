"""Loads and starts the CUDA driver and NVML, and says what it found. A program of its own: any call may hang or crash.

    python -m timeslice.cli.doctor.driver_probe

Each line of stdout is a JSON object that adds to what is known; {"step": NAME} comes before a call that can hang.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

CHECKPOINT_CALLS = (
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessUnlock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessRestore",
)


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def main() -> None:
    _probe_cuda()
    _probe_nvml()
    _say(step=None)


def _probe_cuda() -> None:
    _say(step="loading libcuda.so.1")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as err:
        _say(cuda_error=str(err))
        return
    _say(cuda_library=_file_of("libcuda.so"))
    _say(missing_calls=[name for name in CHECKPOINT_CALLS if not hasattr(cuda, name)])
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        _say(cuda_version=version.value)
    _say(step="cuInit")
    if code := cuda.cuInit(0):
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(name))
        _say(cuda_error=f"cuInit says {name.value.decode() if name.value else code}")


def _probe_nvml() -> None:
    _say(step="loading libnvidia-ml.so.1")
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as err:
        _say(nvml_error=str(err))
        return
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    _say(step="nvmlInit")
    if code := nvml.nvmlInitWithFlags(0):
        _say(nvml_error=f"nvmlInit says: {nvml.nvmlErrorString(code).decode()}")
        return
    _say(step="NVML")
    version = ctypes.create_string_buffer(80)
    if nvml.nvmlSystemGetDriverVersion(version, 80) == 0:
        _say(version=version.value.decode())
    count = ctypes.c_uint()
    if code := nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        _say(nvml_error=f"nvmlDeviceGetCount says: {nvml.nvmlErrorString(code).decode()}")
    _say(devices=[_device(nvml, index) for index in range(count.value)])
    nvml.nvmlShutdown()


def _device(nvml: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle, text, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _NvmlMemory()
    device: dict[str, Any] = {"index": index, "uuid": "", "name": "", "memory_total_bytes": 0}
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return device
    if nvml.nvmlDeviceGetUUID(handle, text, 96) == 0:
        device["uuid"] = text.value.decode()
    if nvml.nvmlDeviceGetName(handle, text, 96) == 0:
        device["name"] = text.value.decode()
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        device["memory_total_bytes"] = memory.total
    device["persistence"] = _number(nvml, "nvmlDeviceGetPersistenceMode", handle)
    device["compute_mode"] = _number(nvml, "nvmlDeviceGetComputeMode", handle)
    return device


def _number(nvml: ctypes.CDLL, call: str, handle: ctypes.c_void_p) -> int | None:
    """What a call that fills in an enum says; None: not supported."""
    value = ctypes.c_int()
    return value.value if hasattr(nvml, call) and getattr(nvml, call)(handle, ctypes.byref(value)) == 0 else None


def _file_of(library: str) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if library in path.rpartition("/")[2]:
            return f"/{path}"
    return None


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
