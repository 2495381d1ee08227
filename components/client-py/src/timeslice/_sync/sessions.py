"""The thread that keeps a session."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from timeslice._channel import status_of
from timeslice._core import wire
from timeslice._core.calls import Status
from timeslice._core.keeping import KeptSession
from timeslice._core.sessions import SessionState
from timeslice._core.steps import Effect
from timeslice._processes import RegisteredProcesses
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2


class SessionKeeper:
    """A session's stream in a background thread: opened, renewed, opened again.

    `changed` guards the core, and is notified whenever the session's state changes.
    """

    def __init__(
        self,
        kept: KeptSession,
        changed: threading.Condition,
        open_stream: Callable[[Iterator[pb2.SessionRequest]], Any],
        carry_out: Callable[[Iterable[Effect]], None],
        registered: RegisteredProcesses,
        clock: Callable[[], float],
    ) -> None:
        """`open_stream` is the stub's Session."""
        self.kept = kept
        self._changed, self._open_stream, self._carry_out = changed, open_stream, carry_out
        self._registered, self._clock = registered, clock
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name=f"timeslice session {kept.session.job_id}", daemon=True)

    def start(self) -> None:
        self._registered.listen(self._processes_changed)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the session; its leases should have been given back before."""
        self._registered.forget(self._processes_changed)
        with self._changed:
            self.kept.session.close()
            stream = self._stream
            self._changed.notify_all()
        # The requests have ended, so the orchestrator closes its side. A cancel would race with that last word.
        self._thread.join(timeout_s)
        if self._thread.is_alive() and stream is not None:
            stream.cancel()
            self._thread.join(timeout_s)

    # The thread.

    def _run(self) -> None:
        session = self.kept.session
        while session.state is not SessionState.CLOSED:
            try:
                stream = self._open_stream(self._requests(self.kept.streams_ended))
            except ValueError:
                return  # What grpc raises on a closed channel: `close` did not wait longer for the end.
            with self._changed:
                self._stream = stream
            try:
                for notice in stream:
                    with self._changed:
                        effects = self.kept.handle(notice, self._clock())
                        self._changed.notify_all()
                    self._carry_out(effects)
                status = Status("OK", "the orchestrator closed the session's stream")
            except grpc.RpcError as err:
                status = status_of(err)
            with self._changed:
                self._stream = None
                decision, effects = self.kept.stream_ended(status, self._clock(), random.random())
                self._changed.notify_all()
            self._carry_out(effects)
            if decision is None:
                return
            with self._changed:
                self._changed.wait_for(lambda: session.state is SessionState.CLOSED, decision.seconds)

    def _requests(self, stream: int) -> Iterator[pb2.SessionRequest]:
        """What is sent on one stream, when it is due. Runs in a thread of grpc's."""
        session = self.kept.session
        with self._changed:
            self.kept.stream_begins()
        while (effects := self._wait_until_due(stream)) is not None:
            self._carry_out(effects)
            yield wire.session_request(
                session.id,
                session.job_id,
                session.ttl_s,
                self._registered.of_job(session.job_id),
                self.kept.take_claims(),
            )

    def _wait_until_due(self, stream: int) -> list[Effect] | None:
        """Wait until the next renewal is due; what goes with it, None when nothing more goes out on this stream."""
        with self._changed:
            while self.kept.sends_on(stream):
                # Asked anew after each notice: an answer may have changed the time to live.
                due_in = self.kept.due_in(self._clock())
                if due_in <= 0:
                    return self.kept.renewal_goes_out(self._clock())
                self._changed.wait(due_in)
            return None

    def _processes_changed(self, job_id: str) -> None:
        if job_id == self.kept.session.job_id:
            with self._changed:
                self.kept.renew_now()
                self._changed.notify_all()
