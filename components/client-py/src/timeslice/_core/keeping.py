"""What keeping a session means: when to renew it, and what an answer, a notice or their absence says."""

from __future__ import annotations

import logging

from timeslice._core import wire
from timeslice._core.calls import Status
from timeslice._core.contact import Contact
from timeslice._core.leases import HeldLease, LeaseBook
from timeslice._core.sessions import Reconnect, Session, SessionState
from timeslice._core.steps import Effect, GiveBack, Say, Tell, error, warning
from timeslice.orchestrator.types import LostLease
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

LATE_SHARE = 1 / 6
"""Of the time to live: a renewal that goes out later than this was held up. It is half the time between two renewals:
a busy machine does not bring it about, and the orchestrator's patience ends only two such intervals later."""


class KeptSession:
    """One session, the book its notices are entered in, and what people were told about it.

    Not safe between threads: its owner has the lock.
    """

    def __init__(self, session: Session, book: LeaseBook, contact: Contact) -> None:
        self.session = session
        self._book, self._contact = book, contact
        self._last_failure = Status("UNAVAILABLE", "not tried yet")
        self._expected: list[HeldLease] = []
        self._claims: list[HeldLease] = []
        self._renew_now = False
        self._said_overdue = False
        self._said_late = False
        self.streams_ended = 0
        """How many streams are over: what belongs to an earlier one sends nothing any more."""

    # Calls under the session.

    @property
    def id(self) -> str:
        """What calls name it by; empty where the server knows no sessions."""
        return "" if self.session.state is SessionState.UNSUPPORTED else self.session.id

    def is_settled(self, failures: int) -> bool:
        """True if calls may be made, or never will, or one more than `failures` attempts to open it have failed."""
        return self.session.state is not SessionState.OPENING or self.session.failures != failures

    def outcome(self, failures: int, timeout_s: float) -> Status | None:
        """None if calls may be made; else why not, after a wait of at most `timeout_s` for `is_settled(failures)`."""
        match self.session.state:
            case SessionState.OPEN | SessionState.UNSUPPORTED:
                return None
            case SessionState.REFUSED:
                return self.session.refusal
            case SessionState.CLOSED:
                return Status("FAILED_PRECONDITION", "the client was closed")
            case _ if self.session.failures != failures:
                return self._last_failure
            case _:
                return Status("DEADLINE_EXCEEDED", f"no answer within {timeout_s:g} s")

    # The stream.

    def stream_begins(self) -> None:
        """The stream is opened: what is held from now on cannot be missing in its first answer."""
        self._expected = self._book.held_by_job(self.session.job_id)
        self._claims = self._book.at_work(self._expected)

    def take_claims(self) -> list[HeldLease]:
        """What the next message says that the job holds: the first of a stream all of it, the others nothing."""
        claims, self._claims = self._claims, []
        return claims

    def sends_on(self, stream: int) -> bool:
        """True while messages go out on the stream of this number (`streams_ended` when it was opened)."""
        return self.streams_ended == stream and self.session.state is not SessionState.CLOSED

    def due_in(self, now: float) -> float:
        """Seconds until the next message must be sent; not above 0: send it now. An answer may change it."""
        return 0.0 if self._renew_now else self.session.renewal_due_in(now)

    def renew_now(self) -> None:
        """The next message is due at once: its answer lists what the session holds."""
        self._renew_now = True

    def renewal_goes_out(self, now: float) -> list[Effect]:
        """A message is sent now."""
        late_s = -self.session.renewal_due_in(now)
        said: list[Effect] = [*self._lateness(late_s), *self._overdue(now)]
        self._renew_now = False
        self.session.renewal_sent(now)
        return said

    def stream_ended(self, status: Status, now: float, jitter: float) -> tuple[Reconnect | None, list[Effect]]:
        """The stream is over (OK: the orchestrator closed it); None if it is not opened again."""
        self.streams_ended += 1
        self._last_failure = Status("UNAVAILABLE", status.details) if status.code == "OK" else status
        decision = self.session.stream_ended(status, jitter)
        said: list[Effect] = []
        if decision is not None:
            said += self._contact.failed(self._last_failure, now)
        elif self.session.state is SessionState.UNSUPPORTED:
            said += self._contact.made(now)
            text = f"this orchestrator knows no sessions: leases of job {self.session.job_id} live without"
            said.append(Say(logging.INFO, text))
        return decision, said

    # Notices.

    def handle(self, notice: pb2.SessionNotice, now: float) -> list[Effect]:
        """Enter a notice in the book; what follows from it."""
        match notice.WhichOneof("notice"):
            case "opened":
                return self._opened(notice.opened, now)
            case "lost":
                lease = wire.held_lease(notice.lost.lease)
                if notice.lost.will_resume:
                    return self._frozen(lease, notice.lost.reason)
                return self._lost(lease, notice.lost.reason)
            case "regranted":
                self._book.regranted(wire.held_lease(notice.regranted.lease), notice.regranted.replaces_token)
            case "revoke":
                revoke = wire.revoke_notice(notice.revoke)
                return [
                    warning(
                        f"job {revoke.job_id} is asked to give group {revoke.group_id} back within"
                        f" {revoke.grace_s:.1f} s: {revoke.reason}"
                    ),
                    Tell(revoke),
                ]
            case "shared":
                shared = wire.shared_lease(notice.shared, self.session.id)
                return [
                    warning(
                        f"lease {shared.fencing_token} of job {shared.job_id} on group {shared.group_id} is held by"
                        f" {shared.attached} process(es): {shared.other}"
                    ),
                    Tell(shared),
                ]
            case _:
                pass  # A notice of a newer server.
        return []

    def _opened(self, opened: pb2.SessionOpened, now: float) -> list[Effect]:
        listed = [wire.held_lease(lease) for lease in opened.leases]
        effects: list[Effect] = [*self._contact.made(now)]
        if self.session.opened(opened.ttl_ms):
            for lease in self._book.missing(self._expected, listed):
                effects += self._lost(lease, "the orchestrator ended it while it could not be reached")
        for lease in self._book.orphans(listed):
            effects += [
                warning(
                    f"giving group {lease.holding.group_id} back: granted to job {lease.holding.job_id} after its"
                    " acquire had ended"
                ),
                GiveBack(lease),
            ]
        return effects

    def _lost(self, lease: HeldLease, reason: str) -> list[Effect]:
        if not self._book.lost(lease, reason):
            return []
        job_id, group_id = lease.holding
        return [
            error(f"lease {lease.token} of job {job_id} on group {group_id} was lost: {reason}"),
            Tell(LostLease(group_id, job_id, lease.token, reason, will_resume=False)),
        ]

    def _frozen(self, lease: HeldLease, reason: str) -> list[Effect]:
        if not self._book.frozen(lease):
            return []
        job_id, group_id = lease.holding
        return [
            warning(f"job {job_id} was evicted from group {group_id} ({reason}); it goes on at its next turn"),
            Tell(LostLease(group_id, job_id, lease.token, reason, will_resume=True)),
        ]

    # What people are told, once per episode.

    def _lateness(self, late_s: float) -> list[Say]:
        job_id, interval_s = self.session.job_id, self.session.ttl_s / 3
        if late_s <= self.session.ttl_s * LATE_SHARE:
            self._said_late = False
            return []
        if self._said_late:
            return []
        self._said_late = True
        return [
            warning(
                f"a renewal of job {job_id}'s session went out {late_s:.1f} s late (one is due every"
                f" {interval_s:.1f} s): this process could not run the client meanwhile, because native code held the"
                " GIL, the event loop was blocked, or it was stopped. Its leases live on while the connection does or"
                " an agent sees the process; its notices come late"
            )
        ]

    def _overdue(self, now: float) -> list[Say]:
        session = self.session
        overdue, said = session.is_overdue(now), self._said_overdue
        self._said_overdue = overdue
        if not overdue or said or not self._book.held_by_job(session.job_id):
            return []
        return [
            warning(
                f"no renewal of job {session.job_id}'s session was answered for {session.silent_for(now):.0f} s (its"
                f" time to live is {session.ttl_s:.0f} s): its leases may be over; the next call that names them will"
                " tell"
            )
        ]
