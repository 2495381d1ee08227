"""A store that lives as long as a test does, and fails on demand. `Disk` is what survives its process."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from orchestrator.core.effects import ForgetEnded, ForgetWaiter, Publish, Record, RecordWaiter
from orchestrator.core.types import EndedLease, Epoch, GroupId, GroupRecord, GroupView, RequestId, Token, WaiterRecord
from orchestrator.store.interface import Deposed, Loaded, StoreFailed, Write


class Disk:
    """What is written, and who leads."""

    def __init__(self) -> None:
        self.epoch = 0
        self.records: dict[GroupId, GroupRecord] = {}
        self.ended: dict[tuple[GroupId, Token], EndedLease] = {}
        self.waiters: dict[tuple[GroupId, RequestId], WaiterRecord] = {}


class MemoryStore:
    """A store on a `Disk`. Opening one raises the disk's epoch and so deposes the store that was opened before."""

    writes_groups_apart = False

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        disk.epoch += 1
        self._epoch = Epoch(disk.epoch)
        self.is_full = False
        """Every write fails, certainly, as on a full disk."""
        self.next_writes: deque[tuple[Exception, bool]] = deque()
        """For each next write: the exception that it ends with, and whether it was done all the same."""
        self.gate: asyncio.Event | None = None
        """While set up, writes wait until the test sets it."""

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    async def load(self) -> Loaded:
        disk = self._disk
        return Loaded(tuple(disk.records.values()), tuple(disk.ended.values()), tuple(disk.waiters.values()))

    async def read(self, group: GroupId) -> GroupRecord | None:
        return self._disk.records.get(group)

    async def write(self, writes: Sequence[Write]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self._disk.epoch != self._epoch:
            raise Deposed(self._epoch, self._disk.epoch)
        if self.is_full:
            raise StoreFailed("the store refused a write: it is full")
        failure, is_done = self.next_writes.popleft() if self.next_writes else (None, True)
        if is_done:
            for write in writes:
                self._apply(write)
        if failure is not None:
            raise failure

    async def raise_epoch(self, above: int) -> Epoch:
        if self._disk.epoch != self._epoch:
            raise Deposed(self._epoch, self._disk.epoch)
        self._disk.epoch = self._epoch = Epoch(max(above, self._epoch) + 1)
        return self._epoch

    def show_by(self, view: Callable[[GroupId], GroupView | None], wall: Callable[[float], float]) -> None:
        """Nobody looks here."""

    def tell(self, published: Publish) -> None:
        """Nobody looks here."""

    async def close(self) -> None:
        pass

    def _apply(self, write: Write) -> None:
        disk = self._disk
        match write:
            case Record(record, ended):
                disk.records[record.group] = record
                disk.ended.update({(lease.group, lease.token): lease for lease in ended})
            case RecordWaiter(waiter):
                disk.waiters[waiter.group, waiter.request] = waiter
            case ForgetWaiter(group, request):
                disk.waiters.pop((group, request), None)
            case ForgetEnded(group, up_to):
                disk.ended = {k: v for k, v in disk.ended.items() if k[0] != group or k[1] > up_to}
