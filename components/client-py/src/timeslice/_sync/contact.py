"""Whether the orchestrator answers, and telling people when that changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from timeslice._core.calls import Status

logger = logging.getLogger("timeslice")

REMINDER_S = 30.0
"""Between two log lines that say the same: an outage of an hour is two screens, not thousands of lines."""


class Contact:
    """Whether the orchestrator answers, told to people once per change. Shared by the threads of a client."""

    def __init__(self, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._target, self._clock = target, clock
        self._lock = threading.Lock()
        self._ever = False
        self._lost_at: float | None = None
        self._said_at = 0.0

    def ever(self) -> bool:
        """True once an orchestrator answered."""
        return self._ever

    def made(self) -> None:
        """It answered."""
        with self._lock:
            lost_at, self._lost_at = self._lost_at, None
            self._ever = True
        if lost_at is not None:
            logger.warning("orchestrator at %s reachable again after %.1f s", self._target, self._clock() - lost_at)

    def failed(self, status: Status) -> None:
        """It did not. Before the first answer this is the caller's to hear, by an exception, and not logged."""
        now = self._clock()
        with self._lock:
            if not self._ever or (self._lost_at is not None and now - self._said_at < REMINDER_S):
                return
            again = self._lost_at is not None
            self._lost_at = now if self._lost_at is None else self._lost_at
            self._said_at = now
            lasting = f" for {now - self._lost_at:.0f} s" if again else ""
        logger.warning(
            "orchestrator at %s unreachable%s, retrying (%s: %s)", self._target, lasting, status.code, status.details
        )
