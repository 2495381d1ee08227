"""Who may give orders: only a caller whose certificate carries the orchestrator's name."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.api.service import Agent, Context, SnapshotAgentService

OPEN_TO_ALL = frozenset({"GetOperation", "Status", "WorkloadChannel"})
"""These change nothing, or only what concerns the caller's own processes. Every other method is an order, as are
those that the contract gets later."""


class OrdersFromOne(SnapshotAgentService):
    """The service, with orders from one name alone: PERMISSION_DENIED for everybody else."""

    def __init__(self, agent: Agent, orders_from: str) -> None:
        """`orders_from`: a DNS name in the caller's certificate, which a listener with TLS has verified."""
        super().__init__(agent)
        self._orders_from = orders_from
        for method in pb.DESCRIPTOR.services_by_name["SnapshotAgentService"].methods:
            if method.name not in OPEN_TO_ALL:
                order = getattr(self, method.name)
                guard = self._guarded_stream if inspect.isasyncgenfunction(order) else self._guarded
                setattr(self, method.name, guard(order, method.name))

    def _guarded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def guarded(request: Any, context: Context) -> Any:
            await self._refuse_others(context, name)
            return await method(request, context)

        return guarded

    def _guarded_stream(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._refuse_others(context, name)
            async with aclosing(method(request, context)) as messages:
                async for message in messages:
                    yield message

        return guarded

    async def _refuse_others(self, context: Context, method: str) -> None:
        known = context.auth_context()
        if self._orders_from.encode() in known.get("peer_dns", ()):
            return
        if known.get("transport_security_type") != [b"ssl"]:
            caller = "a caller without a certificate"
        else:
            names = b", ".join(known.get("peer_dns", ())).decode("ascii", "replace")[:256]
            caller = f"a caller whose certificate is for {names or 'no DNS name'}"
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"{method} is an order, and this agent takes orders over TLS from {self._orders_from!r} alone"
            f" (--orders-from), not from {caller}. Jobs acquire and yield at the orchestrator; Status and"
            " WorkloadChannel are open here",
        )
