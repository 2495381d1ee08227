"""What the owner of a pod is told by Kubernetes Events."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.core.effects import Publish
from orchestrator.core.types import GroupId, JobId, NodeId
from orchestrator.infra.pod_events import Message, PodEvents, event, pods_of

Object = dict[str, Any]


def pod(name: str, job: str, group: str | None = None, node: str = "n1", phase: str = "Running") -> Object:
    labels = {"timeslice.io/job-id": job, **({"timeslice.io/group": group} if group else {})}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "labels": labels, "resourceVersion": "1"},
        "spec": {"nodeName": node}, "status": {"phase": phase},
    }


class Api:
    """Lists some pods, and keeps what is posted."""

    def __init__(self, *pods: Object) -> None:
        self._pods = pods
        self.posted: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()

    async def request(
        self, method: str, path: str, body: Object | None = None, *, query: Mapping[str, str] | None = None
    ) -> Object:
        if method == "GET":
            assert query == {"labelSelector": "timeslice.io/job-id"}
            return {"metadata": {"resourceVersion": "1"}, "items": list(self._pods)}
        assert body is not None
        self.posted.put_nowait((path, body))
        return body

    async def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Object]:
        await asyncio.Event().wait()
        yield {}


def happened(kind: str, job: str = "a", *, node: str | None = None, detail: str = "") -> Publish:
    return Publish(
        group=GroupId("g"), kind=kind, job=JobId(job), node=NodeId(node) if node else None, detail=detail)


@pytest.fixture
async def api() -> Api:
    return Api(
        pod("a-0", "a", "g"), pod("a-1", "a", None, "n2"), pod("other-group", "a", "h"), pod("b-0", "b", "g"),
        pod("done", "a", "g", phase="Succeeded"))


@pytest.fixture
async def events(api: Api) -> AsyncIterator[PodEvents]:
    events = PodEvents(api, "orchestrator-0", clock=lambda: 100.0, long_wait_s=0.01)  # type: ignore[arg-type]
    running = asyncio.create_task(events.run())
    yield events
    running.cancel()
    await asyncio.wait([running])


async def named(api: Api, count: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(5):
        found = [(await api.posted.get())[1] for _ in range(count)]
    return [(one["regarding"]["name"], one["reason"]) for one in found]


async def test_a_fault_is_told_on_the_jobs_pods_of_that_group(api: Api, events: PodEvents) -> None:
    events.tell(happened("granted"))
    events.tell(happened("faulted", detail="the driver failed"))
    assert await named(api, 2) == [("a-0", "Faulted"), ("a-1", "Faulted")]


async def test_what_happens_on_one_node_is_told_on_the_pods_there(api: Api, events: PodEvents) -> None:
    events.tell(happened("snapshot_failed", node="n2"))
    events.tell(happened("faulted", "b"))
    assert await named(api, 2) == [("a-1", "SnapshotFailed"), ("b-0", "Faulted")]


async def test_the_same_is_told_once_in_a_while(api: Api, events: PodEvents) -> None:
    for _ in range(5):
        events.tell(happened("faulted", "b"))
    events.tell(happened("killed", "b"))
    assert await named(api, 2) == [("b-0", "Faulted"), ("b-0", "Killed")]


async def test_a_long_wait_is_told_and_one_that_ended_is_not(api: Api, events: PodEvents) -> None:
    events.tell(happened("queued", "a"))
    events.tell(happened("granted", "a"))
    events.tell(happened("queued", "b"))
    assert await named(api, 1) == [("b-0", "LongWait")]
    assert api.posted.empty()


def test_an_event_is_what_the_api_server_takes() -> None:
    message = Message("g", "a", None, "Blocked", "x" * 3000)
    [found] = pods_of(message, [pod("a-0", "a", "g")])
    made = event(message, found, "o" * 200, datetime(2026, 5, 4, 10, 11, 12, 345678, UTC))
    assert made["metadata"]["name"].startswith("a-0.")
    del made["metadata"]["name"]
    assert made == {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "ml"},
        "eventTime": "2026-05-04T10:11:12.345678Z", "reportingController": "timeslice.io/orchestrator",
        "reportingInstance": "o" * 128, "action": "Scheduling", "reason": "Blocked", "type": "Warning",
        "note": "x" * 1023 + "…",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "a-0", "uid": "uid-a-0"},
    }
