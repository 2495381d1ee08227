"""One call of the user, over as many attempts as it takes: when to send, to repeat and to give up.

A shell asks `next(now)` for the attempt to send, reports how it ended with `failed` or `reached`, and does what it is
told. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

REPEATED = frozenset({"UNAVAILABLE", "CANCELLED"})
"""Statuses of a server that went away under a call. CANCELLED is what a server that stops gives its open calls."""


@dataclass(frozen=True)
class Status:
    """How an attempt failed: a gRPC status by name, and its text."""

    code: str
    details: str


@dataclass(frozen=True)
class Patience:
    """How long a client goes on trying."""

    connect_timeout_s: float = 2.0
    """For an orchestrator that never answered yet: a wrong address should be known at once, but a job may be started
    in the same breath as its orchestrator."""
    unreachable_timeout_s: float = 600.0
    """For one that answered before: longer than a restart, an update or a node's reboot, short enough that a job does
    not wait for ever for an orchestrator that was removed."""
    attempt_timeout_s: float = 10.0
    """For one attempt that should be answered at once: a server that accepts and never answers is as good as none."""
    slice_s: float = 25.0
    """For one attempt that waits in the queue: below the 30 to 60 s after which common proxies cut idle calls."""
    backoff_first_s: float = 0.05
    backoff_max_s: float = 0.5
    """An orchestrator that restarted waits 2 s for its waiters to come back before it grants; all should be in time."""


@dataclass(frozen=True)
class Send:
    """Send an attempt and give it `timeout_s` (None: no bound)."""

    timeout_s: float | None
    request_id: str = ""
    wait_ms: int = 0


@dataclass(frozen=True)
class Pause:
    """Wait, then ask for the next attempt."""

    seconds: float


@dataclass(frozen=True)
class GiveUp:
    """Raise the error of this status."""

    status: Status


class Call:
    """A call whose every attempt may be repeated without harm once it is known not to have been answered."""

    def __init__(
        self, what: str, *, patience: Patience, now: float, timeout_s: float | None, reached: bool, safe: bool = True
    ) -> None:
        """`reached`: this client has had an answer before. `safe`: repeating an attempt that may have been carried
        out, and whose answer is merely late, changes nothing."""
        self._what, self._patience, self._safe = what, patience, safe
        self._started, self._timeout_s = now, timeout_s
        self._deadline = None if timeout_s is None else now + timeout_s
        self._reached = reached
        self._silent_since: float | None = None
        self._last_failure: Status | None = None
        self._is_last = False
        self._backoff_s = patience.backoff_first_s

    def time_left(self, now: float) -> float | None:
        """Seconds until the caller's own deadline, None without one."""
        return None if self._deadline is None else self._deadline - now

    def next(self, now: float) -> Send | GiveUp:
        """The attempt to send now."""
        remaining = self.time_left(now)
        if remaining is not None and remaining <= 0:
            if self._last_failure is not None and self._last_failure.code in REPEATED:
                return GiveUp(Status("UNAVAILABLE", self._last_failure.details))
            return GiveUp(self._too_late())
        send = self._send(remaining)
        self._is_last = send.timeout_s == remaining and remaining is not None
        return send

    def failed(self, status: Status, now: float, jitter: float) -> Pause | GiveUp:
        """An attempt ended with an error; `jitter` is a random number from 0 to 1."""
        remaining = self.time_left(now)
        if status.code == "DEADLINE_EXCEEDED":
            # Not by the clock: the attempt's timer may go off a little before the deadline it was set to.
            if self._is_last or not self._safe:
                return GiveUp(self._too_late() if self._is_last else status)
        elif status.code not in REPEATED:
            self.reached()
            return GiveUp(status)
        if self._silent_since is None:
            self._silent_since = now
        self._last_failure = status
        limit = self._patience.unreachable_timeout_s if self._reached else self._patience.connect_timeout_s
        if now - self._silent_since >= limit or (remaining is not None and remaining <= 0):
            return GiveUp(Status("UNAVAILABLE", status.details))
        pause = self._backoff_s * (0.5 + jitter / 2)
        self._backoff_s = min(self._backoff_s * 2, self._patience.backoff_max_s)
        # The last try falls onto the limit itself, not a whole pause behind it.
        left = [self._silent_since + limit - now] + ([] if remaining is None else [remaining])
        return Pause(min(pause, *left))

    def client_was_answered(self) -> None:
        """The orchestrator has answered another call of this client by now, or its session: it is worth waiting for."""
        self._reached = True

    def reached(self) -> None:
        """The orchestrator answered something: it is there, and patience starts anew."""
        self._reached = True
        self._silent_since = self._last_failure = None
        self._backoff_s = self._patience.backoff_first_s

    def _send(self, remaining: float | None) -> Send:
        bound = self._patience.attempt_timeout_s
        return Send(bound if remaining is None else min(bound, remaining))

    def _too_late(self) -> Status:
        return Status("DEADLINE_EXCEEDED", f"{self._what} did not end within {self._timeout_s:g} s")


class AcquireCall(Call):
    """An acquire: asked in slices, all under one request id, so that no attempt queues or holds twice."""

    def __init__(
        self,
        what: str,
        *,
        request_id: str,
        fresh_request_id: str,
        patience: Patience,
        now: float,
        timeout_s: float | None,
        reached: bool,
    ) -> None:
        """`fresh_request_id` is used where the orchestrator says that the first one is over (see `failed`)."""
        super().__init__(what, patience=patience, now=now, timeout_s=timeout_s, reached=reached)
        self._request_id, self._fresh_request_id = request_id, fresh_request_id
        self._answer_lost = False
        self._slices = True

    def without_extensions(self) -> None:
        """The server knows neither request ids nor slices: a second attempt would queue anew, so one must do."""
        self._slices = self._safe = False

    def failed(self, status: Status, now: float, jitter: float) -> Pause | GiveUp:
        """As for every call; besides: ABORTED after a lost answer starts over, once.

        The lost answer may have been a grant that ended while nobody was there. If it was a refusal (a cycle of waits)
        it comes again.
        """
        if status.code == "ABORTED" and self._answer_lost and self._request_id != self._fresh_request_id:
            self.reached()
            self._request_id = self._fresh_request_id
            return Pause(0.0)
        decision = super().failed(status, now, jitter)
        self._answer_lost = self._answer_lost or isinstance(decision, Pause)
        return decision

    def _send(self, remaining: float | None) -> Send:
        if not self._slices:
            return Send(remaining, self._request_id)
        slice_s = self._patience.slice_s
        if remaining is not None and remaining <= slice_s:
            # No wait_ms: the call's own deadline ends it, and so takes the job out of the queue at once.
            return Send(remaining, self._request_id)
        timeout_s = slice_s + self._patience.attempt_timeout_s
        return replace(
            Send(timeout_s if remaining is None else min(timeout_s, remaining), self._request_id),
            wait_ms=int(slice_s * 1000),
        )
