"""A set of simulated GPUs of our own, in a folder of our own: made, tuned, and read by the `gpu-mock` command."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from timeslice._gpu_mock import mock_folder
from timeslice_demo.ground_truth import JournalLine, read_journal
from timeslice_demo.recorded import Swap

MIB = 2**20
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "gpu-mock")


class NoMock(Exception):
    """The mock, or a part of it, is not there or does not do what it is told; the text says what to do."""


def find_libraries() -> Path:
    """The folder with the mock's libraries: $GPU_MOCK_LIB_DIR, else the installed mock's, else where Bazel puts them.

    Raises:
        NoMock: something is missing there.
    """
    beside_us = Path(__file__).absolute().parents[2] / "components" / "gpu-mock"
    folder = mock_folder(os.environ) or beside_us
    missing = [name for name in LIBRARIES if not (folder / name).exists()]
    if missing:
        where = f"{folder} (GPU_MOCK_LIB_DIR)" if os.environ.get("GPU_MOCK_LIB_DIR") else str(folder)
        raise NoMock(
            f"{where} has no {', '.join(missing)}; run: pip install 'timeslice-rl[local]' (in a checkout of the"
            " repository: ./bazelw run //:demo)"
        )
    return folder


class MockGpus:
    """`count` simulated GPUs whose state lies in `folder`, which must not exist yet.

    Args:
        swaps: how long a save and a restore take on each device, in order of the devices.
        utilization_window_s: how far NVML's utilisation looks back.
    """

    def __init__(
        self, libraries: Path, folder: Path, memory_bytes: int, swaps: list[Swap], utilization_window_s: float
    ) -> None:
        self._libraries = libraries
        self.environment = {"TIMESLICE_GPU_MOCK_DIR": str(folder), "LD_LIBRARY_PATH": _loader_path(libraries)}
        self._command("create", f"{len(swaps)}x{memory_bytes // MIB}MiB")
        self.inject("set", f"util-window-ms={round(utilization_window_s * 1000)}")
        for device, swap in enumerate(swaps):
            self.inject("slow", f"device={device}", f"checkpoint={swap.save_s:.6f}", f"restore={swap.restore_s:.6f}")

    def inject(self, *words: str) -> None:
        """Change a setting or add a fault, in the words of `gpu-mock inject`."""
        self._command("inject", *words)

    def journal(self) -> list[JournalLine]:
        return read_journal(self._command("journal", "--json"))

    def _command(self, *words: str) -> str:
        environment: Mapping[str, str] = {**os.environ, **self.environment}
        command = [str(self._libraries / "gpu-mock"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoMock(f"`gpu-mock {' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def _loader_path(libraries: Path) -> str:
    before = os.environ.get("LD_LIBRARY_PATH")
    return f"{libraries}{os.pathsep}{before}" if before else str(libraries)
