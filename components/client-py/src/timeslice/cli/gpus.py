"""Whether this machine has a driver and a GPU, asked without initialising CUDA (which can take seconds)."""

from __future__ import annotations

import ctypes

from timeslice.cli.errors import CommandError

USE_THE_MOCK = "to try it without a GPU run: timeslice up --mock 2x80GiB"


def check_driver() -> int:
    """The number of GPUs, at least 1.

    Raises:
        CommandError: no driver, or no GPU.
    """
    _load("libcuda.so.1")
    nvml = _load("libnvidia-ml.so.1")
    if code := nvml.nvmlInitWithFlags(0):
        raise CommandError(f"the NVIDIA driver does not answer (NVML error {code}); see nvidia-smi, or {USE_THE_MOCK}")
    try:
        count = ctypes.c_uint()
        if code := nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise CommandError(f"the NVIDIA driver does not say how many GPUs there are (NVML error {code})")
    finally:
        nvml.nvmlShutdown()
    if not count.value:
        raise CommandError(f"there is no GPU on this machine; {USE_THE_MOCK}")
    return count.value


def _load(library: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(library)
    except OSError as err:
        raise CommandError(f"no NVIDIA driver on this machine ({library} cannot be loaded); {USE_THE_MOCK}") from err
