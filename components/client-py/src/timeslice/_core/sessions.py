"""What keeps a client's leases alive: a session, renewed every third of its time to live.

The time to live counts from when the last *answered* renewal was sent, on the client's own monotonic clock: the
orchestrator cannot have started to count before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from timeslice._core.calls import REPEATED, Patience, Status

UNREACHABLE = REPEATED | {"DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL", "RESOURCE_EXHAUSTED"}
"""Ends of a stream after which it is opened again. Every other one is an answer: asking again would bring it again."""


class SessionState(Enum):
    """Where a session stands."""

    OPENING = "opening"
    """No answer yet, now or since the stream broke; the shell is trying."""
    OPEN = "open"
    UNSUPPORTED = "unsupported"
    """The server does not know sessions: leases live without."""
    REFUSED = "refused"
    CLOSED = "closed"


@dataclass(frozen=True)
class Reconnect:
    """Open the stream again after a pause."""

    seconds: float


class Session:
    """One session over as many streams as it takes."""

    def __init__(self, session_id: str, job_id: str, ttl_s: float, patience: Patience) -> None:
        self.id, self.job_id = session_id, job_id
        self.ttl_s = ttl_s
        """In force: what we ask for until the orchestrator has answered with its own."""
        self.state = SessionState.OPENING
        self.refusal: Status | None = None
        self.failures = 0
        """Streams that broke or could not be opened: rises for ever."""
        self._patience = patience
        self._backoff_s = patience.backoff_first_s
        self._unanswered: deque[float] = deque()
        self._sent_at: float | None = None
        self._answered_at: float | None = None

    def renewal_due_in(self, now: float) -> float:
        """Seconds until the next message must be sent on the stream, negative when it is late; 0 for its first."""
        return 0.0 if self._sent_at is None else self._sent_at + self.ttl_s / 3 - now

    def renewal_sent(self, now: float) -> None:
        """A message goes out now. It is stamped before it is sent, so the estimate errs on the safe side."""
        self._sent_at = now
        self._unanswered.append(now)

    def opened(self, ttl_ms: int) -> bool:
        """A renewal was answered, the oldest first; True if the session is open only now."""
        if self._unanswered:
            self._answered_at = self._unanswered.popleft()
        if ttl_ms > 0:
            self.ttl_s = ttl_ms / 1000
        self._backoff_s = self._patience.backoff_first_s
        first = self.state is not SessionState.OPEN
        if self.state is not SessionState.CLOSED:
            self.state = SessionState.OPEN
        return first

    def stream_ended(self, status: Status, jitter: float) -> Reconnect | None:
        """The stream is over; None if it must not be opened again (see `state`)."""
        self._unanswered.clear()
        self._sent_at = None
        self.failures += 1
        if self.state is SessionState.CLOSED:
            return None
        if status.code == "UNIMPLEMENTED":
            self.state = SessionState.UNSUPPORTED
            return None
        if status.code != "OK" and status.code not in UNREACHABLE:
            self.state, self.refusal = SessionState.REFUSED, status
            return None
        self.state = SessionState.OPENING
        pause = self._backoff_s * (0.5 + jitter / 2)
        self._backoff_s = min(self._backoff_s * 2, self._patience.backoff_max_s)
        return Reconnect(pause)

    def close(self) -> None:
        """The client is done with it."""
        self.state = SessionState.CLOSED

    def silent_for(self, now: float) -> float:
        """Seconds since the last answered renewal was sent, 0 if none ever was."""
        return 0.0 if self._answered_at is None else now - self._answered_at

    def is_overdue(self, now: float) -> bool:
        """True once the orchestrator may have ended the session for want of renewals."""
        return self._answered_at is not None and self.silent_for(now) > self.ttl_s
