"""The watch of an API server: what it tells, and what it survives (rows 29 and 30 of docs/design/failures.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fake_api_server import GROUPS, PODS, FakeApiServer
from snapshot_agent_server.core.events import GroupsChanged, PodsChanged
from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.samples import DeviceSample
from snapshot_agent_server.kubernetes.api import ApiError, ClusterApi
from snapshot_agent_server.kubernetes.cluster import Cluster
from snapshot_agent_server.kubernetes.watch import WatchLimits

QUICK = WatchLimits(longest_delay_s=0.05)
DEVICES = tuple(DeviceSample(AcceleratorId(f"GPU-{n}"), n, "GPU", 1, 0) for n in range(2))


class Told:
    """What the cluster's watches have told so far."""

    def __init__(self) -> None:
        self.pods: list[str] = []
        self.groups: dict[str, tuple[str, ...]] = {}
        self.count = 0
        self._changed = asyncio.Condition()

    def __call__(self, event: PodsChanged | GroupsChanged) -> None:
        self.count += 1
        match event:
            case PodsChanged(pods):
                self.pods = sorted(f"{pod.name} {pod.job}" for pod in pods)
            case GroupsChanged(claims):
                self.groups = {claim.group: claim.accelerators for claim in claims}
        asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"told so far: {self.pods} {self.groups}") from None


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    server = FakeApiServer()
    async with server.up():
        yield server


@asynccontextmanager
async def following(server: FakeApiServer, folder: Path, limits: WatchLimits = QUICK) -> AsyncIterator[Told]:
    """A cluster's two watches, once they have told of the first lists."""
    config = server.kubeconfig(folder / "kubeconfig")
    api, told = await ClusterApi.connected({"KUBECONFIG": str(config)}), Told()
    cluster = Cluster(api, "n", DEVICES, told, limits=limits)
    running = asyncio.create_task(cluster.run())
    try:
        await cluster.first_word(10.0)
        yield told
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await api.close()
        if not running.cancelled():
            running.result()


async def test_it_tells_what_is_there_and_what_comes_changes_and_goes(server: FakeApiServer, tmp_path: Path) -> None:
    first = await server.pod("one", job="a")
    await server.pod("elsewhere", node="other", job="b")
    await server.pod("nobody")
    await server.group("g", "0")
    async with following(server, tmp_path) as told:
        assert told.pods == ["default/one a"]
        assert told.groups == {"g": ("GPU-0",)}
        await server.pod("two", job="b", group="g")
        await told.until(lambda: told.pods == ["default/one a", "default/two b"])
        await server.group("g", "1")
        await told.until(lambda: told.groups == {"g": ("GPU-1",)})
        await server.delete(PODS, first)
        await told.until(lambda: told.pods == ["default/two b"])


async def test_it_asks_for_this_nodes_pods_with_its_token(server: FakeApiServer, tmp_path: Path) -> None:
    async with following(server, tmp_path):
        await server.until_watched(2)
    assert {query.get("fieldSelector") for path, query in server.requests if path == PODS} == {"spec.nodeName=n"}
    assert all("watch" in q or "resourceVersion" not in q for _, q in server.requests), "a list is asked of the quorum"


async def test_a_watch_that_the_server_ends_goes_on_where_it_was(server: FakeApiServer, tmp_path: Path) -> None:
    async with following(server, tmp_path, WatchLimits(brief_s=0.0)) as told:
        await server.until_watched(2)
        await server.end_watches()
        await server.until_watched(4)
        await server.pod("late", job="a")
        await told.until(lambda: told.pods == ["default/late a"])
        lists = [path for path, query in server.requests if "watch" not in query]
        assert sorted(lists) == sorted([PODS, GROUPS]), "nothing was listed again"


async def test_a_watch_that_ends_at_once_again_and_again_is_no_busy_loop(server: FakeApiServer, tmp_path: Path) -> None:
    async with following(server, tmp_path, WatchLimits(brief_s=3600.0, longest_delay_s=0.05)) as told:
        await server.until_watched(2)
        await server.end_watches()
        await server.until_watched(4)
        assert [path for path, query in server.requests if "watch" not in query].count(PODS) == 2
        await server.pod("late", job="a")
        await told.until(lambda: told.pods == ["default/late a"])


async def test_410_is_answered_with_a_new_list(server: FakeApiServer, tmp_path: Path) -> None:
    kept = await server.pod("kept", job="a")
    lost = await server.pod("lost", job="b")
    async with following(server, tmp_path) as told:
        await server.until_watched(2)
        await server.stop()
        server.objects[PODS].pop(lost["metadata"]["uid"])  # deleted unseen
        await server.pod("new", job="c")
        server.compact()
        await server.start()
        await told.until(lambda: told.pods == ["default/kept a", "default/new c"])
        assert kept


async def test_what_happens_on_a_stream_that_has_gone_silent_is_not_missed(
    server: FakeApiServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path, WatchLimits(silence_s=0.3, longest_delay_s=0.05)) as told:
        await server.until_watched(2)
        server.mute()
        await server.pod("unheard", job="a")
        await told.until(lambda: told.pods == ["default/unheard a"])


async def test_while_the_server_is_away_what_is_known_stays(server: FakeApiServer, tmp_path: Path) -> None:
    await server.pod("one", job="a")
    async with following(server, tmp_path) as told:
        await server.until_watched(2)
        count = told.count
        await server.stop()
        with pytest.raises(OSError):  # nobody listens
            await asyncio.open_connection("127.0.0.1", server.port)
        assert (told.pods, told.count) == (["default/one a"], count)
        await server.start()
        await server.pod("two", job="b")
        await told.until(lambda: told.pods == ["default/one a", "default/two b"])


@pytest.mark.parametrize(("status", "advice"), [(403, "list and watch"), (404, "CustomResourceDefinition")])
async def test_a_refusal_is_said_once_with_what_to_do(
    server: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, advice: str
) -> None:
    server.refuse_with = status
    api, told = await ClusterApi.connected({"KUBECONFIG": str(server.kubeconfig(tmp_path / "k"))}), Told()
    cluster = Cluster(api, "n", DEVICES, told, limits=WatchLimits(longest_delay_s=0.02))
    running = asyncio.create_task(cluster.run())
    async with server._news:
        await server._news.wait_for(lambda: len(server.requests) > 12)
    server.refuse_with = None
    await cluster.first_word(10.0)
    running.cancel()
    await asyncio.wait((running,))
    await api.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2, "one for each list"
    assert all(advice in text and str(status) in text for text in warnings)


async def test_without_a_cluster_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="set KUBECONFIG"):
        await ClusterApi.connected({"HOME": str(tmp_path)})


async def test_the_same_again_is_not_told(server: FakeApiServer, tmp_path: Path) -> None:
    """A pod's status changes many times in its life."""
    pod = await server.pod("one", job="a")
    async with following(server, tmp_path) as told:
        count = told.count
        for phase in ("Pending", "Running"):
            pod["status"] = {"phase": phase}
            await server.put(PODS, pod)
        await server.pod("two", job="b")
        await told.until(lambda: len(told.pods) == 2)
        assert told.count == count + 1
