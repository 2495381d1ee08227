"""All agents: one link per node, and the core's effects sent along the right one."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc

from orchestrator.agents.dialing import PLAIN, Dialer
from orchestrator.agents.link import AgentEffect, AgentLink, Post
from orchestrator.agents.target import AgentTarget, LinkSettings
from orchestrator.core.events import AgentCallFailed, NodeDisconnected
from orchestrator.core.types import AgentErrorKind, Epoch, NodeId
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Start a task with a name, owned by whoever gave this function."""


class AgentPool:
    """The links to all nodes. `spawn` owns the tasks: one per link, and one per call in progress."""

    def __init__(
        self, epoch: Epoch, settings: LinkSettings, post: Post, spawn: Spawn, dialer: Dialer = PLAIN
    ) -> None:
        self._dialer = dialer
        self._epoch = epoch
        self._settings = settings
        self._post = post
        self._spawn = spawn
        self._links: dict[NodeId, AgentLink] = {}
        self._runs: dict[NodeId, asyncio.Task[None]] = {}

    def set_targets(self, targets: Sequence[AgentTarget]) -> None:
        """These are the nodes from now on: links are made, kept, replaced or dropped accordingly."""
        wanted = {target.node: target for target in targets if target.address}
        for node, link in list(self._links.items()):
            if wanted.get(node) != link.target:
                self.forget(node)
                moved = f"the agent is at {wanted[node].address} now" if node in wanted else "no agent runs there"
                self._post(NodeDisconnected(node, moved))
        for node, target in wanted.items():
            if node not in self._links:
                link = self._links[node] = AgentLink(target, self._epoch, self._settings, self._post, self._dialer)
                self._runs[node] = self._spawn(link.run(), f"link to node {node}")

    def forget(self, node: NodeId) -> None:
        """Drop a node's connection."""
        if self._links.pop(node, None) is not None:
            self._runs.pop(node).cancel()

    def perform(self, effect: AgentEffect) -> None:
        """Start to carry the effect out; what became of it is posted."""
        link = self._links.get(effect.node)
        if link is None:
            self._post(AgentCallFailed(
                effect.node, effect.operation, AgentErrorKind.UNANSWERED, f"no agent runs on node {effect.node!r}"))
            return
        if not link.announce(effect):
            return
        self._spawn(link.perform(effect), f"{type(effect).__name__} {effect.operation} on node {effect.node}")


async def highest_epoch(targets: Sequence[AgentTarget], timeout_s: float, dialer: Dialer = PLAIN) -> int:
    """The highest leader epoch that any agent that answers in time has seen; 0 if none did.

    Asked once, before leading: a store that was lost would start again with numbers that agents refuse.
    """
    async def ask(target: AgentTarget) -> int:
        async with dialer.channel(target.address) as channel:
            stub = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                status = await stub.Status(pb.StatusRequest(per_context=True), timeout=timeout_s)
            except grpc.aio.AioRpcError:
                return 0
            return max((fence.leader_epoch for fence in status.fences), default=0)

    return max(await asyncio.gather(*(ask(target) for target in targets if target.address)), default=0)
