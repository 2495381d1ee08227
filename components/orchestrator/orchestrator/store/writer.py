"""The core's writes, in order, as many in one transaction as have gathered while the last one was under way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn

from orchestrator.core.effects import ForgetEnded, ForgetWaiter, ReadRecord, Record, RecordWaiter
from orchestrator.core.events import Event, ReadFailed, Recorded, RecordFailed, RecordRead, RecordUnclear
from orchestrator.core.types import GroupId
from orchestrator.store.interface import Store, StoreFailed, StoreUnclear, Write


class StoreWriter:
    """Carries out the core's store effects one batch at a time, and posts what became of each.

    No task of its own on the way: a batch begins when the turn of the loop in which it gathered is over, and what it
    came to is posted from the store's own callback.
    """

    def __init__(
        self, store: Store, post: Callable[[Event], None], failed: asyncio.Future[NoReturn] | None = None
    ) -> None:
        """`failed`: where a failure is told; None: a future of its own."""
        self._store = store
        self._post = post
        self._pending: list[Write | ReadRecord] = []
        self._owed: list[Write] = []
        """What was lost with a record that could not be written: the core says the record again, but not these."""
        self._is_busy = False
        """A batch is under way, or about to begin."""
        self._under_way: asyncio.Future[Any] | None = None
        self._is_stopped = False
        self._failed: asyncio.Future[NoReturn] = failed or asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()

    def perform(self, effect: Write | ReadRecord) -> None:
        """Take it into the next batch."""
        self._pending.append(effect)
        if not self._is_busy:
            self._is_busy = True
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin)

    async def run(self) -> NoReturn:
        """Wait until writing fails, and raise that; nothing begins any more when this is cancelled. Deposed: somebody
        else leads."""
        try:
            await self._failed
        finally:
            self.stop()
        raise AssertionError("the future only ever fails")

    def stop(self) -> None:
        """Begin nothing any more."""
        self._is_stopped = True
        if self._under_way is not None:
            self._under_way.cancel()

    async def drained(self) -> None:
        """Wait until nothing is left to write."""
        await self._idle.wait()

    def _begin(self) -> None:
        """Start with what has gathered. Reads stand between the writes before and after them."""
        if not self._pending:
            self._is_busy = False
            self._idle.set()
        elif not self._is_stopped:
            first = self._pending[0]
            if isinstance(first, ReadRecord):
                del self._pending[0]
                self._when_done(self._store.read(first.group), lambda done: self._was_read(first, done))
            else:
                gathered = _first_writes(self._pending)
                del self._pending[: len(gathered)]
                writes, self._owed = [*self._owed, *gathered], []
                self._when_done(self._store.write(writes), lambda done: self._was_written(writes, done))

    def _when_done(self, work: Awaitable[Any], then: Callable[[asyncio.Future[Any]], None]) -> None:
        def go_on(done: asyncio.Future[Any]) -> None:
            self._under_way = None
            if done.cancelled():
                return  # the loop ends
            try:
                then(done)
            except Exception as error:
                if not self._failed.done():
                    self._failed.set_exception(error)
                return
            self._begin()

        self._under_way = asyncio.ensure_future(work)
        self._under_way.add_done_callback(go_on)

    def _was_written(self, writes: list[Write], done: asyncio.Future[None]) -> None:
        records = [write.record for write in writes if isinstance(write, Record)]
        try:
            done.result()
        except StoreFailed as error:
            self._owe(writes)
            for record in records:
                self._post(RecordFailed(record.group, record.version, str(error)))
        except StoreUnclear as error:
            self._owe(writes)
            for record in records:
                self._post(RecordUnclear(record.group, record.version, str(error)))
        else:
            for record in records:
                self._post(Recorded(record.group, record.version))

    def _owe(self, writes: list[Write]) -> None:
        """Take places in the queue along with the next batch. To write them twice does no harm."""
        self._owed = [*(write for write in writes if not isinstance(write, Record)), *self._owed]

    def _was_read(self, effect: ReadRecord, done: asyncio.Future[Any]) -> None:
        try:
            record = done.result()
        except StoreFailed as error:
            self._post(ReadFailed(effect.group, str(error)))
        else:
            self._post(RecordRead(effect.group, record))


class GroupWriters:
    """As `StoreWriter`, with a batch under way for each group at the same time."""

    def __init__(self, store: Store, post: Callable[[Event], None]) -> None:
        self._store = store
        self._post = post
        self._writers: dict[GroupId, StoreWriter] = {}
        self._failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()

    def perform(self, effect: Write | ReadRecord) -> None:
        """Take it into the next batch of its group."""
        group = group_of(effect)
        if group not in self._writers:
            self._writers[group] = StoreWriter(self._store, self._post, self._failed)
        self._writers[group].perform(effect)

    async def run(self) -> NoReturn:
        """As `StoreWriter.run`."""
        try:
            await self._failed
        finally:
            for writer in self._writers.values():
                writer.stop()
        raise AssertionError("the future only ever fails")

    async def drained(self) -> None:
        """Wait until nothing is left to write."""
        for writer in list(self._writers.values()):
            await writer.drained()


def writer_for(store: Store, post: Callable[[Event], None]) -> StoreWriter | GroupWriters:
    """What writes to this store."""
    return GroupWriters(store, post) if store.writes_groups_apart else StoreWriter(store, post)


def group_of(effect: Write | ReadRecord) -> GroupId:
    """The group that an effect is about."""
    match effect:
        case Record(record):
            return record.group
        case RecordWaiter(waiter):
            return waiter.group
        case ForgetWaiter(group) | ForgetEnded(group) | ReadRecord(group):
            return group


def _first_writes(effects: Iterable[Write | ReadRecord]) -> list[Write]:
    """Those before the first read."""
    writes: list[Write] = []
    for effect in effects:
        if isinstance(effect, ReadRecord):
            break
        writes.append(effect)
    return writes
