"""All of a process's device memory as one allocation: named arrays, and a filler for what a real job's activations
and caches take.

Every byte of it is accounted for. `seal` remembers what the arrays held when a phase ended, and `changes` names what
is different when the next one begins: whatever happened in between, a save, other jobs, a restore, must have left no
trace.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
FILLER = "filler"


class Memory(Protocol):
    """The part of a device that an arena needs."""

    def allocate(self, size_bytes: int) -> int: ...
    def write(self, address: int, content: NDArray[Any]) -> None: ...
    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]: ...


class Arena:
    """One allocation that holds arrays, packed, and a filler up to its last byte.

    Args:
        fields: each array's shape and type; all start as zeros.
        size_bytes: of the whole; rounded up to pages, and at least what the arrays need.
        seed: of the filler's content.
    """

    def __init__(
        self, memory: Memory, fields: Mapping[str, tuple[Sequence[int], type]], size_bytes: int, seed: Sequence[int]
    ) -> None:
        self._memory = memory
        self._fields = {name: (tuple(shape), np.dtype(kind)) for name, (shape, kind) in fields.items()}
        self._offsets: dict[str, int] = {}
        used = 0
        for name, (shape, kind) in self._fields.items():
            self._offsets[name] = used
            used += int(np.prod(shape)) * kind.itemsize
        self.size_bytes = -(-max(size_bytes, used) // PAGE_BYTES) * PAGE_BYTES
        self._address = memory.allocate(self.size_bytes)
        memory.write(self._address, np.zeros(used, np.uint8))
        filler = np.random.default_rng(seed).integers(0, 256, self.size_bytes - used, np.uint8)
        self._filler_offset = used
        if len(filler):
            memory.write(self._address + used, filler)
        self._filler_checksum = zlib.crc32(filler.data)
        self._sealed: dict[str, int] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A copy of the array as the device holds it now."""
        shape, kind = self._fields[name]
        size_bytes = int(np.prod(shape)) * kind.itemsize
        return self._memory.read(self._address + self._offsets[name], size_bytes).view(kind).reshape(shape)

    def __setitem__(self, name: str, value: NDArray[Any]) -> None:
        """Write the array to the device.

        Raises:
            ValueError: it has another shape or type than was said.
        """
        shape, kind = self._fields[name]
        if value.shape != shape or value.dtype != kind:
            raise ValueError(f"{name} is {kind} of shape {shape}, not {value.dtype} of shape {value.shape}")
        self._memory.write(self._address + self._offsets[name], np.ascontiguousarray(value))

    def seal(self) -> None:
        """Remember what the arrays hold."""
        self._sealed = {name: zlib.crc32(self[name].data) for name in self._fields}

    def changes(self) -> list[str]:
        """The arrays that differ from what was sealed, and the filler if it does. A changed filler is named once."""
        changed = [name for name, checksum in self._sealed.items() if zlib.crc32(self[name].data) != checksum]
        filler = self._memory.read(self._address + self._filler_offset, self.size_bytes - self._filler_offset)
        checksum, self._filler_checksum = self._filler_checksum, zlib.crc32(filler.data)
        return changed + [FILLER] * (checksum != self._filler_checksum)
