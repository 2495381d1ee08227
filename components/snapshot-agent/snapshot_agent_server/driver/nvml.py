"""NVML, in a worker process. Only `worker` imports this module: NVML calls can hang too."""

from __future__ import annotations

from typing import Any

import pynvml


class Nvml:
    """All devices of the node, in index order.

    Raises pynvml.NVMLError where NVML does not start.
    """

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.devices: list[tuple[str, Any]] = []
        self._names: dict[str, str] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            self.devices.append((uuid, handle))
            self._names[uuid] = _text(pynvml.nvmlDeviceGetName(handle))

    def memory(self, uuid: str) -> tuple[int, int, int]:
        """Total, used and free bytes."""
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle(uuid))
        return int(info.total), int(info.used), int(info.free)

    def processes(self, uuid: str) -> dict[int, int | None]:
        """Device memory by pid; None where NVML has no figure ("N/A")."""
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        return {int(p.pid): None if p.usedGpuMemory is None else int(p.usedGpuMemory) for p in found}

    def sample(self) -> list[dict[str, Any]]:
        devices = []
        for index, (uuid, handle) in enumerate(self.devices):
            total, used, _ = self.memory(uuid)
            try:
                utilization = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
            except pynvml.NVMLError_NotSupported:
                utilization = 0.0
            try:
                processes = self.processes(uuid)
            except pynvml.NVMLError_NotSupported:
                processes = {}
            devices.append(
                {
                    "accelerator": uuid,
                    "index": index,
                    "name": self._names[uuid],
                    "total": total,
                    "used": used,
                    "utilization": utilization,
                    "processes": [[pid, size] for pid, size in processes.items()],
                }
            )
        return devices

    def _handle(self, uuid: str) -> Any:
        for known, handle in self.devices:
            if known == uuid:
                return handle
        raise KeyError(uuid)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
