"""The thread that keeps a session."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from timeslice._channel import status_of
from timeslice._core import wire
from timeslice._core.calls import Status
from timeslice._core.leases import HeldLease, LeaseBook
from timeslice._core.sessions import Session, SessionState
from timeslice._processes import RegisteredProcesses
from timeslice._sync.contact import Contact
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

logger = logging.getLogger("timeslice")

class SessionKeeper:
    """A session's stream in a background thread: opened, renewed, opened again, and its notices entered in the book.

    `changed` guards the book and the session, and is notified whenever the session's state changes.
    """

    def __init__(
        self,
        session: Session,
        book: LeaseBook,
        changed: threading.Condition,
        open_stream: Callable[[Iterator[pb2.SessionRequest]], Any],
        give_back: Callable[[HeldLease], None],
        contact: Contact,
        registered: RegisteredProcesses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_stream` is the stub's Session; `give_back` yields a lease that nobody here knows of."""
        self.session = session
        self._book, self._changed = book, changed
        self._open_stream, self._give_back = open_stream, give_back
        self._contact, self._registered, self._clock = contact, registered, clock
        self._stream: Any = None
        self._stream_number = 0
        self._last_failure = Status("UNAVAILABLE", "not tried yet")
        self._renew_now = False
        self._said_overdue = False
        self._expected: list[HeldLease] = []
        self._thread = threading.Thread(target=self._run, name=f"timeslice session {session.job_id}", daemon=True)

    def start(self) -> None:
        self._registered.listen(self._processes_changed)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> Status | None:
        """Wait until calls may be made under the session; else say why not.

        Returns None when the session is open (or the server knows none), the refusal if it was refused, and otherwise
        how the next attempt to open it failed, DEADLINE_EXCEEDED if it did not end in time.
        """
        session = self.session
        with self._changed:
            failures = session.failures
            self._changed.wait_for(
                lambda: session.state is not SessionState.OPENING or session.failures != failures, timeout_s
            )
            match session.state:
                case SessionState.OPEN | SessionState.UNSUPPORTED:
                    return None
                case SessionState.REFUSED:
                    return session.refusal
                case SessionState.CLOSED:
                    return Status("FAILED_PRECONDITION", "the client was closed")
                case _ if session.failures != failures:
                    return self._last_failure
                case _:
                    return Status("DEADLINE_EXCEEDED", f"no answer within {timeout_s:g} s")

    def renew_now(self) -> None:
        """Send a renewal at once: its answer lists what the session holds."""
        with self._changed:
            self._renew_now = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """End the session; its leases should have been given back before."""
        self._registered.forget(self._processes_changed)
        with self._changed:
            self.session.close()
            stream = self._stream
            self._changed.notify_all()
        # The requests have ended, so the orchestrator closes its side. A cancel would race with that last word.
        self._thread.join(timeout_s)
        if self._thread.is_alive() and stream is not None:
            stream.cancel()
            self._thread.join(timeout_s)

    # The thread.

    def _run(self) -> None:
        while True:
            stream = self._open_stream(self._requests(self._stream_number))
            with self._changed:
                self._stream = stream
            try:
                for notice in stream:
                    self._handle(notice)
                status = Status("OK", "the orchestrator closed the session's stream")
            except grpc.RpcError as err:
                status = status_of(err)
            with self._changed:
                self._stream = None
                self._stream_number += 1  # The old stream's requests end.
                self._last_failure = Status("UNAVAILABLE", status.details) if status.code == "OK" else status
                decision = self.session.stream_ended(status, random.random())
                self._changed.notify_all()
                if decision is None:
                    break
            self._contact.failed(self._last_failure)
            with self._changed:
                if self._changed.wait_for(lambda: self.session.state is SessionState.CLOSED, decision.seconds):
                    return
        if self.session.state is SessionState.UNSUPPORTED:
            self._contact.made()
            logger.info("this orchestrator knows no sessions: leases of job %s live without", self.session.job_id)

    def _requests(self, stream_number: int) -> Iterator[pb2.SessionRequest]:
        """What is sent on one stream, when it is due. Runs in a thread of grpc's."""
        session = self.session
        with self._changed:
            self._expected = self._book.held_by_job(session.job_id)
        while self._wait_until_due(stream_number):
            yield wire.session_request(
                session.id, session.job_id, session.ttl_s, self._registered.of_job(session.job_id)
            )

    def _wait_until_due(self, stream_number: int) -> bool:
        """Wait until the next renewal is due, or wanted now; False when nothing more goes out on this stream."""
        with self._changed:
            while self._stream_number == stream_number and self.session.state is not SessionState.CLOSED:
                # Asked anew after each notice: an answer may have changed the time to live.
                due_in = self.session.renewal_due_in(self._clock())
                if due_in <= 0 or self._renew_now:
                    self._renew_now = False
                    self._warn_if_overdue()
                    self.session.renewal_sent(self._clock())
                    return True
                self._changed.wait(due_in)
            return False

    def _warn_if_overdue(self) -> None:
        overdue = self.session.is_overdue(self._clock())
        if overdue and not self._said_overdue and self._book.held_by_job(self.session.job_id):
            logger.warning(
                "no renewal of job %s's session was answered for %.0f s (its time to live is %.0f s): its leases may be"
                " over; the next call that names them will tell",
                self.session.job_id,
                self.session.silent_for(self._clock()),
                self.session.ttl_s,
            )
        self._said_overdue = overdue

    def _handle(self, notice: pb2.SessionNotice) -> None:
        match notice.WhichOneof("notice"):
            case "opened":
                self._opened(notice.opened)
            case "lost":
                lost = wire.held_lease(notice.lost.lease)
                if notice.lost.will_resume:
                    logger.warning("job %s was evicted from group %s (%s); it goes on at its next turn",
                                   lost.holding.job_id, lost.holding.group_id, notice.lost.reason)
                else:
                    self._lost([lost], notice.lost.reason)
            case "regranted":
                with self._changed:
                    self._book.regranted(wire.held_lease(notice.regranted.lease), notice.regranted.replaces_token)
                    self._changed.notify_all()
            case "revoke":
                lease = notice.revoke.lease
                logger.warning(
                    "job %s is asked to give group %s back within %.1f s: %s",
                    lease.job_id, lease.group_id, notice.revoke.grace_ms / 1000, notice.revoke.reason,
                )
            case _:
                pass  # A notice of a newer server.

    def _opened(self, opened: pb2.SessionOpened) -> None:
        listed = [wire.held_lease(lease) for lease in opened.leases]
        with self._changed:
            first = self.session.opened(opened.ttl_ms)
            missing = self._book.missing(self._expected, listed) if first else []
            orphans = self._book.orphans(listed)
            self._changed.notify_all()
        self._contact.made()
        self._lost(missing, "the orchestrator ended it while it could not be reached")
        for lease in orphans:
            logger.warning("giving group %s back: granted to job %s after its acquire had ended",
                           lease.holding.group_id, lease.holding.job_id)
            self._give_back(lease)

    def _lost(self, leases: list[HeldLease], reason: str) -> None:
        for lease in leases:
            with self._changed:
                news = self._book.lost(lease, reason)
                self._changed.notify_all()
            if news:
                logger.error("lease %d of job %s on group %s was lost: %s",
                             lease.token, lease.holding.job_id, lease.holding.group_id, reason)

    def _processes_changed(self, job_id: str) -> None:
        if job_id == self.session.job_id:
            self.renew_now()
