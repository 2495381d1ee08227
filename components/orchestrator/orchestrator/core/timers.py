"""All the times at which the core wants to look again, kept in one heap."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from orchestrator.core.types import GroupId


class Timer(NamedTuple):
    """Names one timer: the group it belongs to (None: the sessions), what it is for, and of whom."""

    group: GroupId | None
    purpose: str
    subject: str = ""


class Timers:
    """Times by name. Setting one again moves it; O(log n) each, and a cancelled one costs nothing later."""

    def __init__(self) -> None:
        self._at: dict[Timer, float] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def set(self, timer: Timer, at_s: float) -> None:
        """Let `timer` be due at `at_s`, in place of an earlier time of the same name."""
        if self._at.get(timer) == at_s:
            return
        self._at[timer] = at_s
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, timer))

    def cancel(self, timer: Timer) -> None:
        """Forget `timer`; one that is not set is no error."""
        self._at.pop(timer, None)

    def is_set(self, timer: Timer) -> bool:
        """Tell whether `timer` is set and not yet due."""
        return timer in self._at

    def take_due(self, now: float) -> list[Timer]:
        """Remove and return the timers that are due, the earliest first."""
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            at_s, _, timer = heapq.heappop(self._heap)
            if self._at.get(timer) == at_s:
                del self._at[timer]
                due.append(timer)
        return due

    def next_at(self) -> float | None:
        """Return the earliest time that is set; None: none is."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._at):
            self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        return self._heap[0][0] if self._heap else None
