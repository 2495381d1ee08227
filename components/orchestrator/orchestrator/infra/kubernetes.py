"""Nodes and groups as a cluster states them: labels of nodes, TimeSliceGroups, pods of agents. See WATCHES.md."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from orchestrator.core.effects import Publish
from orchestrator.core.types import GroupId
from orchestrator.infra import membership
from orchestrator.infra.interface import Topology
from orchestrator.infra.pod_events import PodEvents
from orchestrator.kube import groups
from orchestrator.kube.api import APPLY, ApiError, ApiServer, Object
from orchestrator.kube.informer import Informer, InformerLimits
from orchestrator.logs import say

RETRY_S = 2.0
"""Pause before groups are stated again that the API server did not take."""


class KubernetesInfra:
    """Follows the cluster while `run` runs; states the groups that node labels name."""

    def __init__(
        self, api: ApiServer, namespace: str, instance: str, limits: InformerLimits | None = None
    ) -> None:
        """`namespace`: where the agents are; `instance`: the name of this orchestrator's pod."""
        self._events = PodEvents(api, instance, limits=limits)
        self._api = api
        self._has_news = asyncio.Event()
        """Something may have changed for whoever follows the topologies."""
        self._nodes = Informer(api, "/api/v1/nodes", self._change, limits=limits)
        self._agents = Informer(
            api, f"/api/v1/namespaces/{namespace}/pods", self._change,
            query={"labelSelector": membership.AGENT_LABEL}, limits=limits)
        self._groups = Informer(api, groups.COLLECTION, self._change, limits=limits)
        self.lacks_status: Callable[[GroupId], None] = lambda _: None
        """Called for each group whose object stands there without a status, after every change."""
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_stated = False
        """Whether the labels' groups were stated once, so that the first topology has them."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["KubernetesInfra"]:
        """Follow the cluster within the block."""
        self._running = asyncio.create_task(self.run(), name="cluster")
        self._running.add_done_callback(lambda _: self._has_news.set())
        try:
            yield self
        finally:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer, what in ((self._nodes, "nodes"), (self._agents, "agents"), (self._groups, "groups")):
                tasks.create_task(informer.run(), name=f"watch {what}")
            tasks.create_task(self._state_groups(), name="state groups")
            tasks.create_task(self._events.run(), name="events")

    async def topologies(self) -> AsyncIterator[Topology]:
        """The topology once everything was listed, then another one after each change that matters."""
        last: Topology | None = None
        while True:
            self._has_news.clear()
            if self._running is not None and self._running.done():
                self._running.result()
            if self._is_listed and self._is_stated:
                now = membership.topology(
                    self._nodes.objects, self._groups.objects.values(), self._agents.objects.values())
                if last is None or now != last:
                    gone = {agent.node for agent in last.agents} - self._nodes.objects.keys() if last else set()
                    last = now
                    yield replace(now, deleted=frozenset(gone))
            await self._has_news.wait()

    def tell(self, published: Publish) -> None:
        """Tell the owners of jobs' pods."""
        self._events.tell(published)

    @property
    def _is_listed(self) -> bool:
        return self._nodes.was_listed and self._agents.was_listed and self._groups.was_listed

    def _change(self) -> None:
        self._wake.set()

    async def _state_groups(self) -> None:
        """After every change, bring what we state of groups in line with the labels; then tell who waits."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_listed:
                wanted = membership.to_apply(self._nodes.objects.values(), self._groups.objects)
                failed = [found for found in wanted if not await self._state(found)]
                for group in membership.without_status(self._groups.objects.values()):
                    self.lacks_status(group)
                if not failed:
                    self._is_stated = True
                else:
                    asyncio.get_running_loop().call_later(RETRY_S, self._wake.set)
            self._has_news.set()

    async def _state(self, manifest: Object) -> bool:
        name = manifest["metadata"]["name"]
        try:
            found = await self._api.request(
                "PATCH", f"{groups.COLLECTION}/{name}", manifest,
                query={"fieldManager": groups.FIELD_MANAGER, "force": "true"}, content_type=APPLY)
        except ApiError as error:
            say(f"group {name!r} could not be stated, and is tried again: {error}", level=logging.WARNING, group=name)
            return False
        if not groups.is_leaving(found):
            self._groups.objects[name] = _newer(self._groups.objects.get(name), found)
        return True


def _newer(known: Object | None, answer: Object) -> Object:
    """The watch may have told a later state already than the answer to our own request."""
    if known is None or known["metadata"]["uid"] != answer["metadata"]["uid"]:
        return answer
    return max(known, answer, key=lambda found: int(found["metadata"]["resourceVersion"]))
