"""What a plan asks of its shell, and what the shell reports back.

A plan is a generator: it yields steps, is sent a `Report` on each, and returns the call's result or raises its error.
Between two steps it runs through without waiting, so a shell may hold a lock over that.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from timeslice._core.calls import Pause, Status
from timeslice._core.leases import HeldLease
from timeslice.orchestrator.types import LostLease, RevokeNotice, SharedLease

if TYPE_CHECKING:
    from timeslice._core.keeping import KeptSession

T = TypeVar("T")


@dataclass(frozen=True)
class Say:
    """Log this line."""

    level: int
    text: str


@dataclass(frozen=True)
class Tell:
    """Call the user's function for this, if there is one, and do not wait for it."""

    event: RevokeNotice | LostLease | SharedLease


@dataclass(frozen=True)
class GiveBack:
    """Yield this lease, which nobody here knows of."""

    lease: HeldLease


@dataclass(frozen=True)
class Wake:
    """Let whoever waits look again."""


@dataclass(frozen=True)
class Start:
    """Start to keep this session."""

    kept: KeptSession


@dataclass(frozen=True)
class AwaitSession:
    """Wait until calls may be made under the session (`KeptSession.is_settled`); report its `outcome`."""

    kept: KeptSession
    timeout_s: float


@dataclass(frozen=True)
class Attempt:
    """Send the request and wait for the reply; report how it failed, if so."""

    method: str
    request: Any
    timeout_s: float | None
    """None: no bound."""
    outlives_close: bool = False
    """False: broken off when the client is closed."""


Effect = Say | Tell | GiveBack
"""What a notice of the orchestrator's leads to."""

Step = Say | Tell | Wake | Start | AwaitSession | Attempt | Pause


@dataclass(frozen=True)
class Report:
    """A step was carried out."""

    now: float
    """Seconds on a monotonic clock."""
    jitter: float
    """A random number from 0 to 1."""
    reply: Any = None
    failure: Status | None = None


Plan = Generator[Step, Report, T]


def warning(text: str) -> Say:
    """A person may want to act."""
    return Say(logging.WARNING, text)


def error(text: str) -> Say:
    """Something was lost."""
    return Say(logging.ERROR, text)
