"""Samples of what NVML says of the devices, taken in a process of its own, at even times.

Usage: python -m timeslice_demo.nvml_samples PERIOD_S. One JSON line per device and sample on stdout, until stdin ends.
"""

import json
import select
import sys
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """NVML's answers about one device at one moment."""

    monotonic_ns: int
    device: int
    utilization: float
    """Share of the window before the moment in which a kernel ran, 0 to 1."""
    used_bytes: int

    @staticmethod
    def from_json(line: str) -> "Sample":
        return Sample(**json.loads(line))


def take_samples(period_s: float) -> None:
    import pynvml

    pynvml.nvmlInit()
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    due = time.monotonic()
    while True:
        now_ns = time.monotonic_ns()
        for index, device in enumerate(devices):
            utilization = pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
            sample = Sample(now_ns, index, utilization, int(pynvml.nvmlDeviceGetMemoryInfo(device).used))
            print(json.dumps(asdict(sample)))
        sys.stdout.flush()
        due = max(due + period_s, time.monotonic())
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return


if __name__ == "__main__":
    take_samples(float(sys.argv[1]))
