"""What every store promises. A new store is added to `STORES` with how a test opens it, fills it up and cuts it off."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_api import FakeApi
from orchestrator.core.effects import ForgetEnded, ForgetWaiter, Record, RecordWaiter
from orchestrator.core.types import (
    EndedLease,
    Ending,
    GroupId,
    GroupRecord,
    IntentRecord,
    JobId,
    LeaseRecord,
    NodeId,
    ProcessRef,
    RecordId,
    RequestId,
    SessionId,
    Token,
    WaiterRecord,
)
from orchestrator.store.interface import Deposed, Loaded, Store, StoreFailed
from orchestrator.store.kubernetes import KubernetesStore
from orchestrator.store.memory import Disk, MemoryStore
from orchestrator.store.sqlite import SqliteStore

G, H = GroupId("trainers"), GroupId("samplers/ü")
PROCESSES = (ProcessRef(NodeId("n1"), 12, 99), ProcessRef(NodeId("n2"), 13))
LEASE = LeaseRecord(
    group=G, job=JobId("a"), token=Token(2**62), session=SessionId("s"), requests=(RequestId("r1"), RequestId("r2")),
    accelerators=("n1/GPU-1",), ttl_s=12.5, processes=PROCESSES)
ENDED = EndedLease(
    group=G, job=JobId("b"), token=Token(6), requests=(RequestId("r0"),), ending=Ending.YIELDED, reason="given back",
    pending_waiters=3, snapshot_deferred=True)
FULL_RECORD = GroupRecord(
    group=G, version=RecordId(7), last_token=Token(2**62), lease=LEASE, resident=JobId("a"), last_yield=ENDED,
    intent=IntentRecord(token=Token(8), job=JobId("c"), outgoing=(JobId("a"),), tries=2),
    faulted=((JobId("x"), "lost its memory"),))
WAITER = WaiterRecord(
    group=G, request=RequestId("w1"), job=JobId("c"), sequence=4, session=SessionId("s2"), processes=PROCESSES,
    priority=-1, expected_hold_s=2.5, owner="team")


@dataclass
class Place:
    """Where stores of one kind live: what outlasts their process."""

    open: Callable[[], Awaitable[Any]]
    """Open it as a new process would, while an older one may still believe that it leads."""
    fill_up: Callable[[Any], None]
    """From now on this store has no space left."""
    free: Callable[[Any], None]


def memory_place(_: Path) -> Place:
    disk = Disk()

    async def open_() -> MemoryStore:
        return MemoryStore(disk)

    return Place(open_, lambda store: setattr(store, "is_full", True), lambda store: setattr(store, "is_full", False))


def sqlite_place(folder: Path) -> Place:
    async def open_() -> SqliteStore:
        (folder / "orchestrator.lock").unlink(missing_ok=True)  # as on another machine: the lock is tested elsewhere
        return await SqliteStore.open(folder)

    def limit(store: SqliteStore, pages: int) -> None:
        store._connection.execute(f"PRAGMA max_page_count = {pages}")

    return Place(open_, lambda store: limit(store, 1), lambda store: limit(store, 1 << 30))


def kubernetes_place(_: Path) -> Place:
    api = FakeApi()

    async def open_() -> KubernetesStore:
        return await KubernetesStore.open(api, "timeslice-system", "test")

    return Place(open_, lambda _: setattr(api, "is_full", True), lambda _: setattr(api, "is_full", False))


STORES = {"memory": memory_place, "sqlite": sqlite_place, "kubernetes": kubernetes_place}


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return STORES[request.param](tmp_path)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    opened = await place.open()
    yield opened
    await opened.close()


async def reopened(place: Place, store: Store) -> Loaded:
    await store.close()
    again = await place.open()
    loaded = await again.load()
    await again.close()
    return loaded  # type: ignore[no-any-return]


async def test_a_new_store_is_empty(store: Store) -> None:
    assert await store.load() == Loaded()
    assert await store.read(G) is None


async def test_every_field_of_every_record_comes_back_after_a_restart(place: Place) -> None:
    store = await place.open()
    bare = GroupRecord(group=H, version=RecordId(1))
    await store.write([Record(FULL_RECORD, (ENDED,)), Record(bare), RecordWaiter(WAITER)])
    assert await store.read(G) == FULL_RECORD
    loaded = await reopened(place, store)
    assert sorted(loaded.records, key=lambda r: r.group) == sorted([FULL_RECORD, bare], key=lambda r: r.group)
    assert loaded.ended == (ENDED,)
    assert loaded.waiters == (WAITER,)


async def test_the_writes_of_one_batch_take_effect_in_their_order(place: Place) -> None:
    store = await place.open()
    newer = GroupRecord(group=G, version=RecordId(8))
    older = [EndedLease(group=G, job=JobId("a"), token=Token(n), requests=(), ending=Ending.EXPIRED) for n in (1, 2, 3)]
    other = EndedLease(group=H, job=JobId("a"), token=Token(1), requests=(), ending=Ending.EXPIRED)
    await store.write([
        Record(FULL_RECORD, tuple(older)), Record(GroupRecord(group=H, version=RecordId(1)), (other,)),
        RecordWaiter(WAITER), ForgetEnded(G, Token(2)), Record(newer), ForgetWaiter(G, WAITER.request),
    ])
    loaded = await reopened(place, store)
    assert set(loaded.ended) == {older[2], other}
    assert loaded.waiters == ()
    assert newer in loaded.records


async def test_forgetting_what_is_not_there_is_no_error(store: Store) -> None:
    await store.write([ForgetWaiter(G, RequestId("none")), ForgetEnded(G, Token(9))])
    assert await store.load() == Loaded()


async def test_the_epoch_rises_with_every_opening(place: Place) -> None:
    epochs = []
    for _ in range(3):
        store = await place.open()
        epochs.append(store.epoch)
        await store.close()
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0


async def test_a_leader_that_was_replaced_writes_nothing(place: Place) -> None:
    old = await place.open()
    await old.write([Record(FULL_RECORD)])
    new = await place.open()
    for attempt in ([Record(GroupRecord(group=G, version=RecordId(99)))], [ForgetWaiter(G, RequestId("w"))]):
        with pytest.raises(Deposed):
            await old.write(attempt)
    with pytest.raises(Deposed):
        await old.raise_epoch(50)
    assert await new.read(G) == FULL_RECORD
    await old.close()
    await new.close()


async def test_the_epoch_can_be_raised_above_what_agents_have_seen(place: Place) -> None:
    store = await place.open()
    assert await store.raise_epoch(40) == 41 == store.epoch
    await store.write([Record(FULL_RECORD)])
    await store.close()
    later = await place.open()
    assert later.epoch > 41
    await later.close()


async def test_a_full_store_refuses_the_whole_batch_and_recovers_by_itself(place: Place, store: Store) -> None:
    await store.write([Record(FULL_RECORD)])
    place.fill_up(store)
    big = GroupRecord(group=G, version=RecordId(8), faulted=tuple((JobId(str(n)), "x" * 50) for n in range(10_000)))
    with pytest.raises(StoreFailed):
        await store.write([Record(GroupRecord(group=H, version=RecordId(1))), Record(big)])
    assert await store.read(G) == FULL_RECORD
    assert await store.read(H) is None
    place.free(store)
    await store.write([Record(big)])
    assert await store.read(G) == big


async def test_each_batch_is_written_whole_while_others_wait(store: Store) -> None:
    import asyncio

    records = [GroupRecord(group=GroupId(f"g{n}"), version=RecordId(1)) for n in range(50)]
    await asyncio.gather(*(store.write([Record(record)]) for record in records))
    assert set((await store.load()).records) == set(records)
