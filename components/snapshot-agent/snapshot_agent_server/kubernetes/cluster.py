"""Tells the core what the cluster says of this node, from two watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from snapshot_agent_server import logs
from snapshot_agent_server.core.events import GroupsChanged, PodsChanged
from snapshot_agent_server.core.samples import DeviceSample
from snapshot_agent_server.kubernetes import objects
from snapshot_agent_server.kubernetes.api import Api, Json
from snapshot_agent_server.kubernetes.watch import Reflector, WatchLimits

log = logging.getLogger("snapshot_agent")

PODS = "/api/v1/pods"
GROUPS = "/apis/timeslice.io/v1alpha1/timeslicegroups"

Told = Callable[[PodsChanged | GroupsChanged], None]


class Cluster:
    """`run` serves until cancelled; `told` is called with what is new, and not again with the same."""

    def __init__(
        self,
        api: Api,
        node: str,
        devices: Sequence[DeviceSample],
        told: Told,
        limits: WatchLimits,
    ) -> None:
        self._node = node
        self._devices = devices
        self._told = told
        self._last: dict[type, PodsChanged | GroupsChanged] = {}
        mine = {"fieldSelector": f"spec.nodeName={node}"}
        self._pods = Reflector(api, PODS, mine, self._pods_changed, what="pods of this node", limits=limits)
        self._groups = Reflector(api, GROUPS, {}, self._groups_changed, what="TimeSliceGroups", limits=limits)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run(), name="watch pods")
            tasks.create_task(self._groups.run(), name="watch groups")

    async def first_word(self, patience_s: float | None) -> None:
        """Wait until pods and groups were listed once; or, where what an earlier agent left will do, so long only."""
        try:
            async with asyncio.timeout(patience_s):
                await self._groups.told.wait()
                await self._pods.told.wait()
        except TimeoutError:
            text = "the API server has not answered: going on with the pods and groups that are on record"
            logs.transition(log, logging.WARNING, text)

    def _pods_changed(self, found: Mapping[str, Json]) -> None:
        self._tell(PodsChanged(*objects.pods(found.values())))

    def _groups_changed(self, found: Mapping[str, Json]) -> None:
        self._tell(GroupsChanged(objects.claims(found.values(), self._node, self._devices)))

    def _tell(self, event: PodsChanged | GroupsChanged) -> None:
        if self._last.get(type(event)) != event:
            self._last[type(event)] = event
            self._told(event)
