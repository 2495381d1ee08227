"""One call, over as many attempts as it takes."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import grpc

from timeslice._channel import status_of
from timeslice._core import wire
from timeslice._core.calls import AcquireCall, Call, GiveUp, Send, Status
from timeslice._core.sessions import SessionState
from timeslice._sync.contact import Contact
from timeslice._sync.sessions import SessionKeeper
from timeslice.orchestrator.exceptions import error_from_status


class Caller:
    """Sends the calls of one client. Safe between threads."""

    def __init__(
        self,
        target: str,
        contact: Contact,
        closed: threading.Event,
        session_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`closed` ends every call and forbids further ones; `session_timeout_s` bounds one wait for a session."""
        self._target, self._contact, self._closed = target, contact, closed
        self._session_timeout_s, self._clock = session_timeout_s, clock

    def complete(
        self, call: Call, rpc: Any, request_for: Callable[[Send], Any], keeper: SessionKeeper | None = None
    ) -> Any:
        """The reply. With `keeper`, attempts are sent only while that session is open.

        Raises:
            OrchestratorError: of the last attempt.
        """
        while True:
            failure = self._await_session(keeper, call)
            if failure is None:
                step = call.next(self._clock())
                if isinstance(step, GiveUp):
                    raise error_from_status(step.status, self._target)
                reply, failure = self.attempt(rpc, request_for(step), step.timeout_s)
                if failure is None:
                    call.reached()
                    if wire.is_queued(reply):
                        continue
                    return reply
            self._pause_after(call, failure)

    def attempt(self, rpc: Any, request: Any, timeout_s: float | None) -> tuple[Any, Status | None]:
        """The reply, or how the attempt failed. However this is left, the attempt is over."""
        pending = None
        try:
            with interrupt_deferred():
                pending = rpc.future(request, timeout=timeout_s)
            reply = pending.result()
        except grpc.RpcError as err:
            return None, status_of(err)
        except grpc.FutureCancelledError:
            return None, Status("CANCELLED", "the call was cancelled")
        finally:
            if pending is not None:
                pending.cancel()  # Ctrl-C in the middle: the orchestrator must not grant what nobody waits for.
        self._contact.made()
        return reply, None

    def _await_session(self, keeper: SessionKeeper | None, call: Call) -> Status | None:
        """Wait for the session: a lease without one would not be kept alive. Returns how that failed."""
        if keeper is None:
            return None
        left = call.time_left(self._clock())
        bound = self._session_timeout_s
        failure = keeper.wait_ready(bound if left is None else max(0.0, min(bound, left)))
        if keeper.session.state is SessionState.UNSUPPORTED and isinstance(call, AcquireCall):
            call.without_extensions()
        return failure

    def _pause_after(self, call: Call, failure: Status) -> None:
        if self._closed.is_set():
            raise error_from_status(Status("CANCELLED", "the client was closed during the call"), self._target)
        decision = call.failed(failure, self._clock(), random.random())
        if isinstance(decision, GiveUp):
            raise error_from_status(decision.status, self._target)
        self._contact.failed(failure)
        self._closed.wait(decision.seconds)


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
