"""What the store of a cluster does where a write meets other writers, an API server that fails, or a missing object."""

import asyncio
from typing import Any

import pytest

from fake_api import FakeApi
from orchestrator.core.effects import ForgetWaiter, Publish, Record, RecordWaiter
from orchestrator.core.types import (
    EndedLease,
    Ending,
    GroupId,
    GroupRecord,
    JobId,
    LeaseRecord,
    RecordId,
    RequestId,
    Token,
    WaiterRecord,
)
from orchestrator.kube.api import APPLY, ApiRefused, ApiUnclear, ApiUnreachable
from orchestrator.kube.groups import manifest, object_path
from orchestrator.store import kubernetes
from orchestrator.store.interface import Deposed, StoreFailed, StoreUnclear
from orchestrator.store.kubernetes import KubernetesStore

G, H = GroupId("trainers"), GroupId("samplers")


def held(version: int, job: str = "a", group: GroupId = G) -> Record:
    lease = LeaseRecord(
        group=group, job=JobId(job), token=Token(version), session=None, requests=(), accelerators=(), ttl_s=30.0,
        processes=())
    return Record(GroupRecord(group=group, version=RecordId(version), last_token=Token(version), lease=lease))


def waiter(number: int) -> RecordWaiter:
    return RecordWaiter(WaiterRecord(
        group=G, request=RequestId(f"r{number}"), job=JobId(f"j{number}"), sequence=number, session=None, processes=(),
        priority=0, expected_hold_s=None, owner=""))


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def store(api: FakeApi) -> KubernetesStore:
    return await KubernetesStore.open(api, "timeslice-system", "pod-0")


async def test_people_see_who_holds_the_group(api: FakeApi, store: KubernetesStore) -> None:
    await store.write([held(1)])
    status = api.objects[object_path(G)]["status"]
    assert (status["state"], status["lease"]["job"], status["token"]) == ("Locked", "a", 1)


async def test_a_group_shows_its_state_before_its_first_lease(
    api: FakeApi, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "QUEUE_WRITE_S", 0.01)
    # As the labels of nodes name it, after the start.
    await api.request("PATCH", object_path(G), manifest(G, ["n1"]), content_type=APPLY)
    store.tell(Publish(group=G, kind="node_found"))
    async with asyncio.timeout(5):
        await api.has_put.wait()
    shown = api.objects[object_path(G)]
    assert (shown["status"]["state"], shown["status"]["epoch"]) == ("Idle", store.epoch)
    assert shown["spec"]["nodes"] == [{"name": "n1"}]
    await store.close()


async def test_a_group_that_was_removed_by_force_gets_its_record_again(
    api: FakeApi, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "QUEUE_WRITE_S", 0.01)
    await store.write([held(1)])
    del api.objects[object_path(G)]
    await api.request("PATCH", object_path(G), manifest(G, ["n1"]), content_type=APPLY)
    api.has_put.clear()
    store.write_again(G)
    store.write_again(H)  # of this one nothing was written
    async with asyncio.timeout(5):
        await api.has_put.wait()
    made = api.objects[object_path(G)]
    assert (made["status"]["lease"]["job"], made["spec"]["nodes"]) == ("a", [{"name": "n1"}])
    assert object_path(H) not in api.objects
    await store.close()


async def test_the_epoch_is_above_that_of_groups_whose_lease_object_was_lost(
    api: FakeApi, store: KubernetesStore
) -> None:
    """Uninstalled and installed again: the Lease goes with its namespace, the groups stay."""
    await store.write([held(1)])
    await store.raise_epoch(6)
    await store.write([held(2)])
    await store.close()
    [lease] = [path for path in api.objects if "/leases/" in path]
    del api.objects[lease]
    later = await KubernetesStore.open(api, "timeslice-system", "pod-1")
    assert later.epoch > 7
    assert api.objects[lease]["spec"]["leaseTransitions"] == later.epoch
    assert await later.read(G) == held(2).record
    with pytest.raises(Deposed):
        await store.write([held(3)])


async def test_a_write_that_meets_a_change_of_something_else_is_repeated(api: FakeApi, store: KubernetesStore) -> None:
    await store.write([held(1)])
    api.touch(object_path(G))
    await store.write([held(2, "b")])
    assert api.objects[object_path(G)]["status"]["lease"]["job"] == "b"


async def test_a_status_that_somebody_else_changed_is_unclear_and_read_before_the_next_write(
    api: FakeApi, store: KubernetesStore
) -> None:
    await store.write([held(1)])
    path = object_path(G)
    api.objects[path]["status"] = {**api.objects[path]["status"], "token": 9, "version": 9}
    api.touch(path)
    with pytest.raises(StoreUnclear):
        await store.write([held(2, "b")])
    found = await store.read(G)
    assert found is not None
    assert found.last_token == 9


@pytest.mark.parametrize("is_done", [False, True])
async def test_row_39_of_a_write_that_was_cut_off_the_record_decides(
    api: FakeApi, store: KubernetesStore, is_done: bool
) -> None:
    await store.write([held(1)])
    api.next_writes.append((ApiUnclear("no answer"), is_done))
    with pytest.raises(StoreUnclear):
        await store.write([held(2, "b")])
    found = await store.read(G)
    assert found is not None
    assert found.version == (2 if is_done else 1)
    await store.write([held(3, "c")])
    assert (await store.read(G)) == held(3, "c").record


async def test_row_30_an_api_server_that_is_away_takes_nothing_and_then_everything(
    api: FakeApi, store: KubernetesStore
) -> None:
    await store.write([held(1)])
    api.next_writes.append((ApiUnreachable("refused"), False))
    with pytest.raises(StoreFailed):
        await store.write([held(2, "b")])
    await store.write([held(2, "b")])
    assert (await store.read(G)) == held(2, "b").record


async def test_row_42_a_deleted_group_is_made_again_with_its_lease(api: FakeApi, store: KubernetesStore) -> None:
    await store.write([held(1)])
    del api.objects[object_path(G)]
    await store.write([held(2, "b")])
    assert api.objects[object_path(G)]["status"]["lease"]["job"] == "b"


async def test_a_group_that_is_made_while_it_is_missed_keeps_its_nodes() -> None:
    class MadeMeanwhile(FakeApi):
        """Who looks for the group finds none, and then it is there: as its node's label says."""

        async def request(self, method: str, path: str, *arguments: Any, **named: Any) -> Any:
            try:
                return await super().request(method, path, *arguments, **named)
            except ApiRefused:
                if (method, path) == ("GET", object_path(G)):
                    await super().request("PATCH", path, manifest(G, ["n1"]), content_type=APPLY)
                raise

    api = MadeMeanwhile()
    store = await KubernetesStore.open(api, "timeslice-system", "pod-0")
    await store.write([held(1)])
    made = api.objects[object_path(G)]
    assert made["spec"]["nodes"] == [{"name": "n1"}]
    assert made["status"]["lease"]["job"] == "a"


async def test_an_api_server_that_is_away_is_told_of_once_and_then_the_queue_is_written(
    api: FakeApi, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kubernetes, "QUEUE_WRITE_S", 0.01)
    await store.write([held(1)])
    api.next_writes.extend([(ApiUnreachable("refused"), False)] * 3 + [(ApiUnclear("cut off"), False)])
    await store.write([waiter(1)])
    async with asyncio.timeout(5):
        while "queue" not in api.objects[object_path(G)]["status"]:
            api.has_put.clear()
            await api.has_put.wait()
    assert [record.message for record in caplog.records if "queue cannot be written" in record.message] == [
        "group trainers: the queue cannot be written for now: refused"]
    await store.close()


async def test_places_that_change_while_the_queue_is_written_are_written_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(FakeApi):
        """The next PUT waits until it is let go."""

        def __init__(self) -> None:
            super().__init__()
            self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()
            self.may_go_on.set()

        async def request(self, method: str, path: str, *arguments: Any, **named: Any) -> Any:
            if method == "PUT" and path.endswith("/status"):
                self.has_begun.set()
                await self.may_go_on.wait()
            return await super().request(method, path, *arguments, **named)

    monkeypatch.setattr(kubernetes, "QUEUE_WRITE_S", 0.01)
    api = Slow()
    store = await KubernetesStore.open(api, "timeslice-system", "pod-0")
    await store.write([held(1), waiter(1)])
    api.has_begun.clear()
    api.may_go_on.clear()
    async with asyncio.timeout(5):
        await store.write([waiter(2)])
        await api.has_begun.wait()
        await store.write([ForgetWaiter(G, RequestId("r1")), waiter(3)])
        api.may_go_on.set()
        while [one["request"] for one in api.objects[object_path(G)]["status"]["queue"]] != ["r2", "r3"]:
            api.has_put.clear()
            await api.has_put.wait()
    assert {one.request for one in (await store.load()).waiters} == {"r2", "r3"}
    await store.close()


async def test_one_group_that_cannot_be_written_holds_up_no_other(api: FakeApi, store: KubernetesStore) -> None:
    await store.write([held(1), held(1, group=H)])
    api.next_writes.append((ApiUnreachable("refused"), False))
    with pytest.raises(StoreUnclear, match="some of 2 groups"):
        await store.write([held(2), held(2, group=H)])
    assert {(await store.read(group)).version for group in (G, H)} == {1, 2}  # type: ignore[union-attr]


async def test_a_handoff_is_two_writes_and_the_queue_waits_for_its_own(
    api: FakeApi, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "QUEUE_WRITE_S", 0.01)
    await store.write([held(1)])
    api.puts.clear()
    for number in range(100):
        await store.write([waiter(number)])
    assert api.puts == []
    ended = EndedLease(group=G, job=JobId("a"), token=Token(1), requests=(), ending=Ending.YIELDED)
    await store.write([Record(GroupRecord(group=G, version=RecordId(2), last_token=Token(2)), (ended,)), waiter(100)])
    await store.write([held(3, "b")])
    assert len(api.puts) == 2
    api.has_put.clear()
    await store.write([waiter(101)])
    async with asyncio.timeout(5):
        await api.has_put.wait()
    status = api.objects[object_path(G)]["status"]
    assert status["queueLength"] == 102
    await store.close()
    assert len(api.puts) == 3


async def test_more_waiters_than_are_shown_are_counted(api: FakeApi, store: KubernetesStore) -> None:
    await store.write([held(1), *(waiter(number) for number in range(300))])
    status = api.objects[object_path(G)]["status"]
    assert (len(status["queue"]), status["queueLength"]) == (200, 300)
