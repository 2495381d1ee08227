"""Samples of what NVML says of the devices, taken in a process of its own, at even times.

Usage: python -m timeslice_demo.nvml_samples PERIOD_S. One JSON line per sample on stdout, until stdin ends.
"""

import json
import select
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """NVML's answers at one moment, one per device."""

    monotonic_ns: int
    utilization: tuple[float, ...]
    """Share of the window before the moment in which a kernel ran, 0 to 1."""
    used_bytes: tuple[int, ...]

    @staticmethod
    def from_json(line: str) -> "Sample":
        fields = json.loads(line)
        return Sample(fields["monotonic_ns"], tuple(fields["utilization"]), tuple(fields["used_bytes"]))


def take_samples(period_s: float) -> None:
    import pynvml

    pynvml.nvmlInit()
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    due = time.monotonic()
    while True:
        line = {
            "monotonic_ns": time.monotonic_ns(),
            "utilization": [pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100 for device in devices],
            "used_bytes": [int(pynvml.nvmlDeviceGetMemoryInfo(device).used) for device in devices],
        }
        print(json.dumps(line), flush=True)
        due = max(due + period_s, time.monotonic())
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return


if __name__ == "__main__":
    take_samples(float(sys.argv[1]))
