"""Kubernetes Events on the pods of jobs, for what their owners should know: faults, and waits that take long."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.core.effects import Publish
from orchestrator.kube.api import ApiError, ApiServer, Object
from orchestrator.kube.informer import Informer, InformerLimits
from orchestrator.logs import say

JOB_LABEL, GROUP_LABEL = "timeslice.io/job-id", "timeslice.io/group"
WARNINGS = {
    "blocked": "Blocked",
    "evicted": "Evicted",
    "expired": "LeaseExpired",
    "faulted": "Faulted",
    "intruded": "Intruder",
    "kill_failed": "KillFailed",
    "killed": "Killed",
    "lease_lost": "LeaseLost",
    "restore_failed": "RestoreFailed",
    "snapshot_failed": "SnapshotFailed",
    "unexplained": "Unexplained",
}
"""Words of the event log, and the reasons that people see; core/SWITCH.md has all words."""
GOOD_NEWS = {"fault_cleared": "FaultCleared", "unblocked": "Unblocked"}
LONG_WAIT = "LongWait"
LONG_WAIT_S = 300.0
"""A phase of another job takes minutes; from here on somebody may wonder."""
QUIET_S = 300.0
"""The same reason for the same job and group is told once in this time."""
MOST_PODS = 20
"""Of a job with a thousand pods, this many get the event."""
MOST_PENDING = 1_000
NOTE_LIMIT = 1024
"""Characters; the API server refuses more."""


@dataclass(frozen=True, slots=True)
class Message:
    """What the pods of a job are told."""

    group: str
    job: str
    node: str | None
    reason: str
    note: str
    is_warning: bool = True


class PodEvents:
    """`tell` takes what the core publishes and never waits; `run` writes it on the pods until cancelled."""

    def __init__(
        self, api: ApiServer, instance: str, *, limits: InformerLimits | None = None,
        clock: Callable[[], float] = time.monotonic, long_wait_s: float = LONG_WAIT_S,
    ) -> None:
        """`instance`: this orchestrator's pod."""
        self._api = api
        self._instance = instance
        self._clock = clock
        self._long_wait_s = long_wait_s
        self._pods = Informer(
            api, "/api/v1/pods", lambda: None, query={"labelSelector": JOB_LABEL}, limits=limits)
        self._pending: asyncio.Queue[Message] = asyncio.Queue(MOST_PENDING)
        self._waits: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._told_s: dict[tuple[str, str, str], float] = {}

    def tell(self, published: Publish) -> None:
        """Take note of something that happened; what nobody needs to know is passed over."""
        if published.job is None:
            return
        group, job = str(published.group), str(published.job)
        match published.kind:
            case "queued":
                self._forget_wait(group, job)
                self._waits[group, job] = asyncio.get_running_loop().call_later(
                    self._long_wait_s, self._tell_long_wait, group, job)
            case "granted" | "left":
                self._forget_wait(group, job)
        reason = WARNINGS.get(published.kind) or GOOD_NEWS.get(published.kind)
        if reason is not None:
            words = published.detail or published.kind.replace("_", " ")
            self._put(Message(
                group, job, published.node, reason, f"group {group}: {words}", published.kind in WARNINGS))

    async def run(self) -> None:
        """Write events until cancelled. One that the API server does not take is dropped, and said in the log."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run(), name="watch jobs' pods")
            tasks.create_task(self._write(), name="write events")

    async def _write(self) -> None:
        while True:
            message = await self._pending.get()
            for pod in pods_of(message, self._pods.objects.values()):
                body = event(message, pod, self._instance, datetime.now(UTC))
                path = f"/apis/events.k8s.io/v1/namespaces/{body['metadata']['namespace']}/events"
                try:
                    await self._api.request("POST", path, body)
                except ApiError as error:
                    say(f"an event on pod {pod['metadata']['name']} could not be written: {error}",
                        level=logging.WARNING, group=message.group, job=message.job)
                    break

    def _tell_long_wait(self, group: str, job: str) -> None:
        self._waits.pop((group, job), None)
        note = f"group {group}: waits since {self._long_wait_s:.0f} s; `kubectl get tsg` shows who holds it"
        self._put(Message(group, job, None, LONG_WAIT, note))

    def _forget_wait(self, group: str, job: str) -> None:
        if (timer := self._waits.pop((group, job), None)) is not None:
            timer.cancel()

    def _put(self, message: Message) -> None:
        now = self._clock()
        key = (message.group, message.job, message.reason)
        if now - self._told_s.get(key, -QUIET_S) < QUIET_S or self._pending.full():
            return
        if len(self._told_s) >= MOST_PENDING:
            self._told_s = {k: at_s for k, at_s in self._told_s.items() if now - at_s < QUIET_S}
        self._told_s[key] = now
        self._pending.put_nowait(message)


def pods_of(message: Message, pods: Iterable[Object]) -> list[Object]:
    """The pods that a message is for: the job's, of that group or of none, on its node if it names one."""
    found = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get(JOB_LABEL) != message.job or labels.get(GROUP_LABEL, message.group) != message.group:
            continue
        if message.node is not None and pod["spec"].get("nodeName") != message.node:
            continue
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            found.append(pod)
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))[:MOST_PODS]


def event(message: Message, pod: Object, instance: str, now: datetime) -> Object:
    """The Event of events.k8s.io/v1 about a pod."""
    metadata = pod["metadata"]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": "timeslice.io/orchestrator",
        "reportingInstance": instance[:128],
        "action": "Scheduling",
        "reason": message.reason,
        "type": "Warning" if message.is_warning else "Normal",
        "note": message.note if len(message.note) <= NOTE_LIMIT else message.note[: NOTE_LIMIT - 1] + "…",
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
