"""What people see while a group is waited for: who holds it, and how many come first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from timeslice.cli.group_data import condition_line
from timeslice.cli.watch_feed import Event, Feed, Message, Refused

QUIET_S = 0.3
"""A group that is granted sooner than this needs no word."""


class Progress:
    """Follows a group while the block lasts, and says what changes for a waiting job."""

    def __init__(self, target: str, group: str, job: str, say: Callable[[str], None]) -> None:
        self._group, self._job, self._say = group, job, say
        self._began = time.monotonic()
        self._latest: list[str] = []
        self._said: list[str] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._feed = Feed(target, [group], 0, self._hear)
        self._timer = threading.Timer(QUIET_S, self._tell)
        self._timer.daemon = True
        self.has_spoken = False

    def __enter__(self) -> Progress:
        self._feed.__enter__()
        self._timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._is_over = True
        self._timer.cancel()
        self._feed.__exit__(*exc_info)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Refused):
            self._latest = [f"waiting for group {self._group}"]
        elif isinstance(message, Event) and message.status is not None:
            self._latest = waiting_lines(message.status, self._job)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            if self._is_over or time.monotonic() - self._began < QUIET_S:
                return
            for line in self._latest:
                if line not in self._said:
                    self._say(line)
                    self.has_spoken = True
            self._said = self._latest


def waiting_lines(group: dict[str, Any], job: str) -> list[str]:
    """How a group stands, for a job that waits for it; then what needs attention, one line each."""
    jobs = [waiter["job"] for waiter in group["waiters"]]
    place = f", place {jobs.index(job) + 1} of {len(jobs)} in the queue" if job in jobs else ""
    holder = group["holder"]
    if holder not in (None, job):
        now = f"held by {holder}"
    elif group["state"] == "SWITCHING":
        now = "its jobs are being exchanged"
    elif group["state"] == "UNKNOWN":
        now = "a node does not answer"
    else:
        now = ""
    line = f"waiting for group {group['group']}" + (f": {now}" if now else "") + place
    return [line, *(condition_line(group["group"], condition) for condition in group["conditions"])]
