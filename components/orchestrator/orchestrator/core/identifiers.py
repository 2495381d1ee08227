"""Names for operations and jitter for pauses, without randomness: the same start gives the same run again."""

from __future__ import annotations

import hashlib

from orchestrator.core.types import Epoch, GroupId, OperationId


class Identifiers:
    """Counts within one leader's epoch, which is durable, and within its run: no id is ever used twice.

    The run matters where the store was lost: epochs begin anew, and an agent that comes later than the start, and knows
    the ids of an earlier time, would take a new operation for one that it has done.
    """

    def __init__(self, epoch: Epoch, run: str = "") -> None:
        self._epoch = epoch
        self._leader = f"{epoch}-{run}" if run else str(epoch)
        self._operations = 0
        self._jitters = 0
        self.owners: dict[OperationId, GroupId] = {}
        """Whose each operation under way is, so that an answer is brought to its group without asking the others."""

    def operation(self, kind: str) -> OperationId:
        """Return an operation id that no orchestrator has used."""
        self._operations += 1
        return OperationId(f"{kind}-{self._leader}-{self._operations}")

    def jitter(self) -> float:
        """Return the next of a fixed series of numbers spread evenly over [0.5, 1.5)."""
        self._jitters += 1
        digest = hashlib.blake2b(f"{self._epoch}/{self._jitters}".encode(), digest_size=4).digest()
        return 0.5 + int.from_bytes(digest, "big") / 2**32
