"""Carrying out the core's plans: sending, waiting, logging."""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import grpc

from timeslice._channel import status_of
from timeslice._core.calls import Pause, Status
from timeslice._core.client import ClientCore
from timeslice._core.keeping import KeptSession
from timeslice._core.steps import Attempt, AwaitSession, Effect, GiveBack, Plan, Report, Say, Start, Step, Tell, Wake
from timeslice._sync.callbacks import Callbacks

logger = logging.getLogger("timeslice")

T = TypeVar("T")


class Runner:
    """Carries out the plans of one client, each in the thread that called. Safe between threads.

    `changed` guards the core, and is notified whenever the core may have changed.
    """

    def __init__(
        self,
        core: ClientCore,
        changed: threading.Condition,
        rpc: Callable[[str], Any],
        start_session: Callable[[KeptSession], None],
        callbacks: Callbacks,
        clock: Callable[[], float],
    ) -> None:
        """`rpc` gives the stub's method of that name."""
        self._core, self._changed = core, changed
        self._rpc, self._start_session, self._callbacks, self._clock = rpc, start_session, callbacks, clock

    def run(self, plan: Plan[T]) -> T:
        """The plan's result. However this is left, the plan is over and has undone what it must."""
        report: Report | None = None
        try:
            while True:
                with self._changed:
                    try:
                        step = next(plan) if report is None else plan.send(report)
                    except StopIteration as end:
                        result: T = end.value
                        return result
                report = self._carry_out(step)
        except BaseException:
            with self._changed:
                plan.close()
                self._changed.notify_all()
            raise

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out what a notice led to."""
        for effect in effects:
            match effect:
                case GiveBack(lease):
                    self.run(self._core.give_back(lease))
                case _:
                    self._carry_out(effect)

    def _carry_out(self, step: Step) -> Report:
        reply, failure = None, None
        match step:
            case Say(level, text):
                logger.log(level, "%s", text)
            case Tell(event):
                self._callbacks.tell(event)
            case Wake():
                with self._changed:
                    self._changed.notify_all()
            case Start(kept):
                self._start_session(kept)
            case AwaitSession(kept, timeout_s):
                with self._changed:
                    failures = kept.session.failures
                    self._changed.wait_for(lambda: kept.is_settled(failures), timeout_s)
                    failure = kept.outcome(failures, timeout_s)
            case Pause(seconds):
                with self._changed:
                    self._changed.wait_for(lambda: self._core.is_closed, seconds)
            case Attempt():
                reply, failure = self._attempt(step)
        return Report(self._clock(), random.random(), reply, failure)

    def _attempt(self, step: Attempt) -> tuple[Any, Status | None]:
        """The reply, or how the attempt failed. However this is left, it is over; closing the channel ends it."""
        pending = None
        try:
            rpc = self._rpc(step.method)
            with interrupt_deferred():
                pending = rpc.future(step.request, timeout=step.timeout_s)
            return pending.result(), None
        except grpc.RpcError as err:
            return None, status_of(err)
        except grpc.FutureCancelledError:
            return None, Status("CANCELLED", "the call was cancelled")
        except ValueError as err:  # What grpc raises on a channel that was closed in the middle of this.
            if not self._core.is_closed:
                raise
            return None, Status("CANCELLED", str(err))
        finally:
            if pending is not None:
                pending.cancel()  # Ctrl-C in the middle: the orchestrator must not grant what nobody waits for.


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Let Ctrl-C wait until the block's end, so that a call that was begun is known to whoever must cancel it.

    Who keeps the exception (a notebook does) would keep the call too: a waiter that nobody waits for. For short blocks.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])
