"""The task that keeps a session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from timeslice._aio.changed import Changed
from timeslice._channel import status_of
from timeslice._core import wire
from timeslice._core.calls import Status
from timeslice._core.keeping import KeptSession
from timeslice._core.sessions import SessionState
from timeslice._core.steps import Effect
from timeslice._processes import RegisteredProcesses
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

logger = logging.getLogger("timeslice")


class SessionKeeper:
    """A session's stream in a task: opened, renewed, opened again.

    `changed` is notified whenever the session's state changes.
    """

    def __init__(
        self,
        kept: KeptSession,
        changed: Changed,
        open_stream: Callable[[AsyncIterator[pb2.SessionRequest]], Any],
        carry_out: Callable[[Iterable[Effect]], Awaitable[None]],
        abandon: Callable[[], Awaitable[None]],
        registered: RegisteredProcesses,
        clock: Callable[[], float],
    ) -> None:
        """`open_stream` is the stub's Session; `abandon` closes the client whose event loop ends."""
        self.kept = kept
        self._changed, self._open_stream, self._carry_out, self._abandon = changed, open_stream, carry_out, abandon
        self._registered, self._clock = registered, clock
        self._loop = asyncio.get_running_loop()
        registered.listen(self._processes_changed)
        self._task = self._loop.create_task(self._run(), name=f"timeslice session {kept.session.job_id}")
        self._task.add_done_callback(self._ended)

    async def close(self, timeout_s: float) -> None:
        """End the session; its leases should have been given back before."""
        self._registered.forget(self._processes_changed)
        self.kept.session.close()
        self._changed.notify_all()
        # The requests have ended, so the orchestrator closes its side. A cancel would race with that last word.
        await asyncio.wait({self._task}, timeout=timeout_s)
        if self._task.cancel():
            await asyncio.wait({self._task}, timeout=timeout_s)

    # The task.

    async def _run(self) -> None:
        try:
            await self._keep()
        except asyncio.CancelledError:
            # The event loop ends (asyncio.run cancels what is left then), or somebody ends all its tasks.
            self._registered.forget(self._processes_changed)
            await self._abandon()
            raise

    async def _keep(self) -> None:
        session = self.kept.session
        while session.state is not SessionState.CLOSED:
            stream = self._open_stream(self._requests(self.kept.streams_ended))
            try:
                async for notice in stream:
                    effects = self.kept.handle(notice, self._clock())
                    self._changed.notify_all()
                    await self._carry_out(effects)
                status = Status("OK", "the orchestrator closed the session's stream")
            except grpc.aio.AioRpcError as err:
                status = _seen_from_outside(status_of(err))
            decision, effects = self.kept.stream_ended(status, self._clock(), random.random())
            self._changed.notify_all()
            await self._carry_out(effects)
            if decision is None:
                return
            await self._changed.wait_for(lambda: session.state is SessionState.CLOSED, decision.seconds)

    async def _requests(self, stream: int) -> AsyncIterator[pb2.SessionRequest]:
        """What is sent on one stream, when it is due. Runs in a task of grpc's."""
        session = self.kept.session
        self.kept.stream_begins()
        while self.kept.sends_on(stream):
            # Asked anew after each notice: an answer may have changed the time to live.
            due_in = self.kept.due_in(self._clock())
            if due_in > 0:
                await self._changed.wait(due_in)
                continue
            await self._carry_out(self.kept.renewal_goes_out(self._clock()))
            yield wire.session_request(
                session.id,
                session.job_id,
                session.ttl_s,
                self._registered.of_job(session.job_id),
                self.kept.take_claims(),
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (err := task.exception()) is not None:
            logger.error("the session of job %s is not kept any more", self.kept.session.job_id, exc_info=err)

    def _processes_changed(self, job_id: str) -> None:
        """Called in whichever thread registered something."""
        if job_id == self.kept.session.job_id:
            with contextlib.suppress(RuntimeError):  # The loop is closed: there is no session any more.
                self._loop.call_soon_threadsafe(self._renew_now)

    def _renew_now(self) -> None:
        self.kept.renew_now()
        self._changed.notify_all()


def _seen_from_outside(status: Status) -> Status:
    """The status, unless grpc made it up.

    Where the server ends a stream that is just being written to, grpc's asyncio side reports that the write failed, and
    not what the server said. The next attempt will tell.
    """
    if status == Status("INTERNAL", "Internal error from Core"):
        return Status("UNAVAILABLE", "the server ended the stream")
    return status
