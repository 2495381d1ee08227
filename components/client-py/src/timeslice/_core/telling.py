"""Which function of the user's is called for what, and when a slow one is worth a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timeslice.orchestrator.types import LostLease, RevokeNotice, SharedLease

SLOW_S = 5.0
"""A callback that takes longer is logged: later events of its kind wait for it."""

Event = RevokeNotice | LostLease | SharedLease


@dataclass(frozen=True)
class Listeners:
    """The user's functions, None where there is none."""

    on_revoke: Callable[[RevokeNotice], Any] | None = None
    on_lost: Callable[[LostLease], Any] | None = None
    on_shared: Callable[[SharedLease], Any] | None = None

    def find(self, event: Event) -> tuple[str, Callable[[Any], Any]] | None:
        """The parameter's name and the function that is called for the event."""
        found: tuple[str, Callable[[Any], Any] | None]
        match event:
            case RevokeNotice():
                found = "on_revoke", self.on_revoke
            case LostLease():
                found = "on_lost", self.on_lost
            case SharedLease():
                found = "on_shared", self.on_shared
        name, function = found
        return None if function is None else (name, function)


def slow(name: str, seconds: float) -> str | None:
    """The line about a callback that took so long, None if it was quick."""
    return f"{name} took {seconds:.1f} s; later calls of it waited" if seconds > SLOW_S else None


def still_running(name: str, seconds: float, waiting: int) -> str | None:
    """The line about a callback that has run so long when the next event comes."""
    return f"{name} has run for {seconds:.1f} s; {waiting} later call(s) of it wait" if seconds > SLOW_S else None
