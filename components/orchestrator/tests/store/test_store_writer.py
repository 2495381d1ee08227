"""The writer: as many writes in one transaction as have gathered, each answered, in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orchestrator.core.effects import ReadRecord, Record, RecordWaiter
from orchestrator.core.events import Event, ReadFailed, Recorded, RecordFailed, RecordRead, RecordUnclear
from orchestrator.core.types import GroupId, GroupRecord, JobId, RecordId, RequestId, WaiterRecord
from orchestrator.store.interface import Deposed, StoreFailed, StoreUnclear
from orchestrator.store.memory import Disk, MemoryStore
from orchestrator.store.writer import StoreWriter

G, H = GroupId("g"), GroupId("h")
WAITER = RecordWaiter(WaiterRecord(group=G, request=RequestId("r"), job=JobId("j"), sequence=1))


def record(group: GroupId, version: int) -> Record:
    return Record(GroupRecord(group=group, version=RecordId(version)))


class CountingStore(MemoryStore):
    """Counts transactions."""

    def __init__(self) -> None:
        super().__init__(Disk())
        self.batches: list[int] = []
        self.began = asyncio.Event()

    async def write(self, writes: object) -> None:
        self.batches.append(len(writes))  # type: ignore[arg-type]
        self.began.set()
        await super().write(writes)  # type: ignore[arg-type]


@asynccontextmanager
async def writing(store: MemoryStore) -> AsyncIterator[tuple[StoreWriter, list[Event]]]:
    events: list[Event] = []
    writer = StoreWriter(store, events.append)
    task = asyncio.create_task(writer.run())
    try:
        yield writer, events
    finally:
        task.cancel()


async def test_what_gathers_in_one_turn_is_one_transaction() -> None:
    store = CountingStore()
    async with writing(store) as (writer, events):
        writer.perform(record(G, 1))
        writer.perform(WAITER)
        writer.perform(record(H, 1))
        await writer.drained()
    assert store.batches == [3]
    assert events == [Recorded(G, RecordId(1)), Recorded(H, RecordId(1))]


async def test_what_comes_during_a_write_is_the_next_transaction() -> None:
    store = CountingStore()
    store.gate = asyncio.Event()
    async with writing(store) as (writer, events):
        writer.perform(record(G, 1))
        await store.began.wait()
        for n in range(5):
            writer.perform(record(GroupId(f"g{n}"), 1))
        assert events == []
        store.gate.set()
        await writer.drained()
    assert store.batches == [1, 5]
    assert len(events) == 6


@pytest.mark.parametrize("error", [StoreFailed("full"), StoreUnclear("cut")])
async def test_a_place_that_failed_beside_a_record_goes_along_with_the_next(error: Exception) -> None:
    """The core says the record again, but no place in the queue."""
    store = MemoryStore(Disk())
    store.next_writes.append((error, False))
    async with writing(store) as (writer, _):
        writer.perform(record(G, 1))
        writer.perform(WAITER)
        await writer.drained()
        assert (await store.load()).waiters == ()
        writer.perform(record(G, 1))
        await writer.drained()
    assert (await store.load()).waiters == (WAITER.waiter,)


@pytest.mark.parametrize(("error", "kind"), [(StoreFailed("full"), RecordFailed), (StoreUnclear("cut"), RecordUnclear)])
async def test_a_failed_transaction_is_told_for_each_of_its_records(error: Exception, kind: type[RecordFailed]) -> None:
    store = MemoryStore(Disk())
    store.next_writes.append((error, False))
    async with writing(store) as (writer, events):
        writer.perform(record(G, 1))
        writer.perform(record(H, 4))
        await writer.drained()
        writer.perform(record(G, 2))
        await writer.drained()
    assert events == [kind(G, RecordId(1), str(error)), kind(H, RecordId(4), str(error)), Recorded(G, RecordId(2))]


async def test_a_read_sees_the_writes_before_it_and_not_those_after() -> None:
    store = CountingStore()
    async with writing(store) as (writer, events):
        writer.perform(record(G, 1))
        writer.perform(ReadRecord(G))
        writer.perform(record(G, 2))
        await writer.drained()
    assert events == [Recorded(G, RecordId(1)), RecordRead(G, record(G, 1).record), Recorded(G, RecordId(2))]


async def test_a_read_that_fails_is_told() -> None:
    class Unreadable(MemoryStore):
        async def read(self, group: GroupId) -> GroupRecord | None:
            raise StoreFailed("gone")

    async with writing(Unreadable(Disk())) as (writer, events):
        writer.perform(ReadRecord(G))
        await writer.drained()
    assert events == [ReadFailed(G, "gone")]


async def test_a_store_that_was_taken_over_ends_the_writer() -> None:
    disk = Disk()
    store = MemoryStore(disk)
    writer = StoreWriter(store, lambda event: None)
    task = asyncio.create_task(writer.run())
    MemoryStore(disk)
    writer.perform(record(G, 1))
    with pytest.raises(Deposed):
        await task
