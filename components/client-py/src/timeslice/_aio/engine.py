"""All that one asyncio client has: its core, its tasks, its channel. Everything here runs on one event loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import grpc.aio

from timeslice._aio import channels
from timeslice._aio.callbacks import Callbacks
from timeslice._aio.changed import Changed
from timeslice._aio.runner import Runner
from timeslice._aio.sessions import SessionKeeper
from timeslice._core.client import CLOSE_S, ClientConfig, ClientCore
from timeslice._core.keeping import KeptSession
from timeslice._core.steps import Plan
from timeslice._core.telling import Listeners
from timeslice._forks import FORKS
from timeslice._processes import REGISTERED
from timeslice.orchestrator.exceptions import OrchestratorError
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

T = TypeVar("T")


class Engine:
    """Carries out one client's calls, and owns its tasks."""

    def __init__(
        self, config: ClientConfig, listeners: Listeners, open_channel: Callable[[], grpc.aio.Channel]
    ) -> None:
        """`open_channel` is called at the first call, on the event loop that the client then belongs to."""
        self._open_channel = open_channel
        self.clock = time.monotonic
        self.core = ClientCore(config, lambda: uuid.uuid4().hex)
        self.changed = Changed()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._keepers: list[SessionKeeper] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._callbacks = Callbacks(listeners, self.clock)
        self._runner = Runner(self.core, self.changed, self._rpc, self._start_session, self._callbacks, self.clock)

    async def run(self, plan_for: Callable[[ClientCore, float], Plan[T]]) -> T:
        """The result of the plan that `plan_for(core, now)` makes.

        Raises:
            OrchestratorError: as the plan does; besides: this event loop is not the client's, or this process is a
                child in which grpc cannot be used.
        """
        self._bind()
        return await self._runner.run(plan_for(self.core, self.clock()))

    async def leave(self, job_id: str | None, group_id: str | None, cause: BaseException | None) -> None:
        """Carry the core's `leave` out to its end, even if this is cancelled meanwhile."""
        if FORKS.unusable is not None:
            return  # A child that was forked inside the block: the group is its parent's.
        self._bind()
        task = asyncio.get_running_loop().create_task(
            self._runner.run(self.core.leave(job_id, group_id, cause, self.clock())), name="timeslice release"
        )
        self._leaving.add(task)
        task.add_done_callback(self._left)
        await asyncio.shield(task)

    async def close(self) -> None:
        """Give back what is held, end the sessions and close the channel. A second call does nothing."""
        if FORKS.unusable is not None:
            return
        if self._loop is not None:
            self._bind()
        await self._wait_for_leaving()
        kept = await self._runner.run(self.core.close())
        if kept is None:
            return
        try:
            for keeper in self._keepers:
                if keeper.kept in kept:
                    await keeper.close(CLOSE_S)
            await self._callbacks.close(CLOSE_S)
        finally:
            await self._disconnect()

    async def _abandon(self) -> None:
        """The event loop ends, and nobody has closed the client: give back what is held. Its tasks end by that."""
        await self._wait_for_leaving()
        if await self._runner.run(self.core.close()) is not None:
            await self._disconnect()

    async def _wait_for_leaving(self) -> None:
        if self._leaving:
            await asyncio.wait(set(self._leaving), timeout=CLOSE_S)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # Raised where the block ends, unless that was cancelled: then the cancellation counts.

    def _bind(self) -> None:
        if FORKS.unusable is not None:
            raise OrchestratorError(FORKS.unusable)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise OrchestratorError(
                "this client belongs to another event loop, the one of its first call; make a new"
                " timeslice.aio.TimeSliceOrchestratorClient for this one"
            )

    def _rpc(self, method: str) -> Any:
        return getattr(self._connect(), method)

    def _connect(self) -> Any:
        if self._stub is None:
            self._channel = self._open_channel()
            self._stub = pb2_grpc.TimeSliceOrchestratorServiceStub(self._channel)  # type: ignore[no-untyped-call]
        return self._stub

    async def _disconnect(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channels.close_channel(channel)

    def _start_session(self, kept: KeptSession) -> None:
        keeper = SessionKeeper(
            kept, self.changed, lambda requests: self._connect().Session(requests), self._runner.carry_out,
            self._abandon, REGISTERED, self.clock,
        )  # fmt: skip
        self._keepers.append(keeper)
