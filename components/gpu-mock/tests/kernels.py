"""The built-in kernels, from the PTX text that a GPU runs too."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from mock_node import MockProcess, MockThread, Pending

PARAMETERS: dict[str, tuple[Any, ...]] = {
    "busy": (ctypes.c_uint64,),  # microseconds
    "axpy": (ctypes.c_float, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32),  # a, x, y, n
    "scale": (ctypes.c_float, ctypes.c_uint64, ctypes.c_uint32),  # a, x, n
    "fill": (ctypes.c_float, ctypes.c_uint64, ctypes.c_uint32),  # value, x, n
    "meet": (ctypes.c_uint64, ctypes.c_uint32),  # counter, parties
}
BLOCK = 256


def ptx_file() -> Path:
    return Path(__file__).parent.parent / "kernels.ptx"


class Kernels:
    """The kernels, loaded into the current context of a thread."""

    def __init__(self, thread: MockProcess | MockThread) -> None:
        self._thread = thread
        self.module: int = self.begin_load().result()[1]
        self._functions: dict[str, int] = {}

    def begin_load(self) -> Pending:
        return self._thread.begin("cuModuleLoadData", ptx_file().read_bytes() + b"\0")

    def function(self, name: str) -> int:
        if name not in self._functions:
            self._functions[name] = self._thread.ok.cuModuleGetFunction(self.module, name.encode())
        return self._functions[name]

    def begin(self, name: str, *arguments: float, threads: int = 1, stream: int = 0) -> Pending:
        blocks = max(1, (threads + BLOCK - 1) // BLOCK)
        return self._thread.begin(
            "cuLaunchKernel", self.function(name), blocks, 1, 1, BLOCK if threads > 1 else 1, 1, 1, 0, stream,
            (arguments, PARAMETERS[name]), 0)  # fmt: skip

    def launch(self, name: str, *arguments: float, threads: int = 1, stream: int = 0) -> None:
        """Queue it; must succeed."""
        [code] = self.begin(name, *arguments, threads=threads, stream=stream).result()
        assert code == 0, f"launch of {name}: {code!r}"

    def begin_busy(self, microseconds: int, stream: int = 0) -> Pending:
        return self.begin("busy", microseconds, stream=stream)

    def busy(self, microseconds: int, stream: int = 0) -> None:
        """Occupy the device for that long."""
        self.launch("busy", microseconds, stream=stream)
