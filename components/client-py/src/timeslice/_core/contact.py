"""Whether the orchestrator answers, and what people are told when that changes."""

from __future__ import annotations

from timeslice._core.calls import Status
from timeslice._core.steps import Say, warning

REMINDER_S = 30.0
"""Between two log lines that say the same: an outage of an hour is two screens, not thousands of lines."""


class Contact:
    """Whether the orchestrator answers, told to people once per change."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.ever = False
        """True once an orchestrator answered."""
        self._lost_at: float | None = None
        self._said_at = 0.0

    def made(self, now: float) -> list[Say]:
        """It answered."""
        lost_at, self._lost_at, self.ever = self._lost_at, None, True
        if lost_at is None:
            return []
        return [warning(f"orchestrator at {self._target} reachable again after {now - lost_at:.1f} s")]

    def failed(self, status: Status, now: float) -> list[Say]:
        """An attempt failed. Before the first answer that is the caller's to hear, by an exception, and not logged."""
        if not self.ever or (self._lost_at is not None and now - self._said_at < REMINDER_S):
            return []
        lasting = "" if self._lost_at is None else f" for {now - self._lost_at:.0f} s"
        self._lost_at = now if self._lost_at is None else self._lost_at
        self._said_at = now
        return [
            warning(f"orchestrator at {self._target} unreachable{lasting}, retrying ({status.code}: {status.details})")
        ]
