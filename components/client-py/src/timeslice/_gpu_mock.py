"""Where the GPU mock is, for whatever runs without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

MOCK_MODULE = "timeslice_gpu_mock"


def mock_folder(env: Mapping[str, str]) -> Path | None:
    """The folder of libcuda.so.1, libnvidia-ml.so.1, kernels.ptx and the command gpu-mock; None: not installed.

    $GPU_MOCK_LIB_DIR names it, else the distribution timeslice-gpu-mock does.
    """
    if named := env.get("GPU_MOCK_LIB_DIR"):
        return Path(named).absolute()
    if importlib.util.find_spec(MOCK_MODULE) is None:
        return None
    folder: Path = importlib.import_module(MOCK_MODULE).folder()
    return folder
