"""The service on a real socket, before a core that only notes what it is told: the test answers in its place."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from orchestrator.api.listener import Listener
from orchestrator.api.server import Core, OrchestratorService
from orchestrator.api.wire import Clock
from orchestrator.core.events import Event
from orchestrator.core.types import Epoch, GroupId, GroupState, GroupView, JobId, Lease, SessionId, Token
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

E = TypeVar("E")
LIMIT_S = 10.0
G = GroupId("g")
LEASE = Lease(
    group=G, job=JobId("a"), token=Token(7), session=SessionId("s"), accelerators=("n1/GPU-1",), ttl_s=30.0)


class NotingCore:
    """Notes every event; its groups are what the test puts in."""

    def __init__(self) -> None:
        self.views: dict[GroupId, GroupView] = {G: GroupView(group=G, state=GroupState.IDLE, state_since_s=0.0)}
        self.noted: list[Event] = []
        self._grew = asyncio.Condition()

    def post(self, event: Event) -> None:
        self.noted.append(event)
        asyncio.get_running_loop().create_task(self._tell())

    async def told(self, kind: type[E], nth: int = 1) -> E:
        """The nth event of a kind, waiting for it."""
        def found() -> list[E]:
            return [event for event in self.noted if isinstance(event, kind)]

        async with asyncio.timeout(LIMIT_S), self._grew:
            await self._grew.wait_for(lambda: len(found()) >= nth)
        return found()[nth - 1]

    async def told_one_of(self, *kinds: type[Event]) -> Event:
        """The first event of one of these kinds, waiting for it."""
        async with asyncio.timeout(LIMIT_S), self._grew:
            await self._grew.wait_for(lambda: any(isinstance(event, kinds) for event in self.noted))
        return next(event for event in self.noted if isinstance(event, kinds))

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.noted)

    async def _tell(self) -> None:
        async with self._grew:
            self._grew.notify_all()


@asynccontextmanager
async def served(
    folder: Path, *, watch_limit: int = 1000, log_size: int = 100
) -> AsyncIterator[tuple[NotingCore, OrchestratorService, Any, grpc.aio.Channel]]:
    """(core, service, stub, channel)"""
    core = NotingCore()
    service = OrchestratorService(
        Core(post=core.post, group_ids=lambda: tuple(core.views), view=core.views.get),
        Clock(time.monotonic, time.time), Epoch(3), log_size=log_size, watch_limit=watch_limit)
    address = f"unix:{folder}/o.sock"
    listener = Listener(service, [address], 16 << 20)
    await listener.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield core, service, pb_grpc.TimeSliceOrchestratorServiceStub(channel), channel
    await listener.stop(None)
