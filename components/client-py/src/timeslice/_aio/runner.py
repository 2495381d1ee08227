"""Carrying out the core's plans: sending, waiting, logging."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc.aio

from timeslice._aio.attempts import ends
from timeslice._aio.callbacks import Callbacks
from timeslice._aio.changed import Changed
from timeslice._channel import status_of
from timeslice._core.calls import Pause, Status
from timeslice._core.client import ClientCore
from timeslice._core.keeping import KeptSession
from timeslice._core.steps import Attempt, AwaitSession, Effect, GiveBack, Plan, Report, Say, Start, Step, Tell, Wake

logger = logging.getLogger("timeslice")

T = TypeVar("T")


class Runner:
    """Carries out the plans of one client, each in the task that called, all on one event loop.

    `changed` is notified whenever the core may have changed.
    """

    def __init__(
        self,
        core: ClientCore,
        changed: Changed,
        rpc: Callable[[str], Any],
        start_session: Callable[[KeptSession], None],
        callbacks: Callbacks,
        clock: Callable[[], float],
    ) -> None:
        """`rpc` gives the stub's method of that name."""
        self._core, self._changed = core, changed
        self._rpc, self._start_session, self._callbacks, self._clock = rpc, start_session, callbacks, clock

    async def run(self, plan: Plan[T]) -> T:
        """The plan's result. However this is left, the plan is over and has undone what it must."""
        report: Report | None = None
        try:
            while True:
                try:
                    step = next(plan) if report is None else plan.send(report)
                except StopIteration as end:
                    result: T = end.value
                    return result
                report = await self._carry_out(step)
        except BaseException:
            plan.close()
            self._changed.notify_all()
            raise

    async def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out what a notice led to."""
        for effect in effects:
            match effect:
                case GiveBack(lease):
                    await self.run(self._core.give_back(lease))
                case _:
                    await self._carry_out(effect)

    async def _carry_out(self, step: Step) -> Report:
        reply, failure = None, None
        match step:
            case Say(level, text):
                logger.log(level, "%s", text)
            case Tell(event):
                self._callbacks.tell(event)
            case Wake():
                self._changed.notify_all()
            case Start(kept):
                self._start_session(kept)
            case AwaitSession(kept, timeout_s):
                failures = kept.session.failures
                await self._changed.wait_for(lambda: kept.is_settled(failures), timeout_s)
                failure = kept.outcome(failures, timeout_s)
            case Pause(seconds):
                await self._changed.wait_for(lambda: self._core.is_closed, seconds)
            case Attempt():
                reply, failure = await self._attempt(step)
        return Report(self._clock(), random.random(), reply, failure)

    async def _attempt(self, step: Attempt) -> tuple[Any, Status | None]:
        """The reply, or how the attempt failed. However this is left, the attempt is over."""
        call = self._rpc(step.method)(step.request, timeout=step.timeout_s)
        if not await ends(call, self._changed, lambda: self._core.is_closed and not step.outlives_close):
            return None, Status("CANCELLED", "the call was cancelled")
        try:
            return await call, None
        except grpc.aio.AioRpcError as err:
            return None, status_of(err)
