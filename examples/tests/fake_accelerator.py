"""A device in this process's memory, for tests of what the roles compute: a small program with state, no driver."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BASE = 0x7F00_0000_0000


class FakeAccelerator:
    """Memory of `total_bytes`; one allocation may be made. `busy` lists what it was asked to be busy for."""

    def __init__(self, ordinal: int, total_bytes: int = 1 << 20) -> None:
        self.ordinal, self._total_bytes = ordinal, total_bytes
        self.memory = np.zeros(0, np.uint8)
        self.busy: list[float] = []
        self.waits = 0

    def allocate(self, size_bytes: int) -> int:
        assert not len(self.memory), "a process makes one allocation"
        assert size_bytes <= self._total_bytes
        self.memory = np.full(size_bytes, 0xAA, np.uint8)  # fresh device memory holds anything
        return BASE

    def write(self, address: int, content: NDArray[Any]) -> None:
        begin = address - BASE
        assert 0 <= begin <= begin + content.nbytes <= len(self.memory)
        self.memory[begin : begin + content.nbytes] = content.reshape(-1).view(np.uint8)

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        begin = address - BASE
        assert 0 <= begin <= begin + size_bytes <= len(self.memory)
        return self.memory[begin : begin + size_bytes].copy()

    def start_busy(self, duration_s: float) -> None:
        self.busy.append(duration_s)

    def wait(self) -> None:
        self.waits += 1
