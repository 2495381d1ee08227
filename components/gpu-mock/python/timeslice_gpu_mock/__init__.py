"""GPU mocks: a CUDA driver, NVML and the command `gpu-mock` for programs on machines without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

__all__ = ["folder"]


def folder() -> Path:
    """Where libcuda.so.1, libnvidia-ml.so.1, kernels.ptx and the program gpu-mock are."""
    return Path(__file__).absolute().parent / "lib"


def main() -> NoReturn:
    """Become the program gpu-mock, with the arguments of this process."""
    program = folder() / "gpu-mock"
    os.execv(program, [str(program), *sys.argv[1:]])
