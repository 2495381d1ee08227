"""What the table of `timeslice watch` shows: messages in, rows out. It knows neither clock nor terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from timeslice.cli.group_data import condition_line, holding, waiting
from timeslice.cli.watch_feed import Back, Event, Lost, Message

REMEMBERED_EVENTS = 200
"""More than fit below the table on any screen."""


@dataclass
class Row:
    """One group."""

    group: str
    status: dict[str, Any] | None = None
    last: Event | None = None


@dataclass(frozen=True)
class Cells:
    """A row in words."""

    group: str
    state: str
    holder: str
    since: str
    queue: str
    condition: str
    last: str


@dataclass
class Board:
    """All groups as they were last told, and the last events."""

    rows: dict[str, Row] = field(default_factory=dict)
    """In the order in which they were named first."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=REMEMBERED_EVENTS))
    lost: str | None = None
    """Why the orchestrator is not heard, None while it is."""

    def hear(self, message: Message) -> None:
        match message:
            case Event():
                row = self.rows.setdefault(message.group, Row(message.group))
                if message.status is not None:
                    row.status = message.status
                if message.kind != "state":
                    row.last = message
                    self.events.append(message)
            case Lost(reason):
                self.lost = reason
            case Back():
                self.lost = None

    def cells(self, now_s: float) -> list[Cells]:
        """`now_s`: seconds since 1970."""
        return [_cells(row, now_s) for row in self.rows.values()]

    def problems(self) -> list[str]:
        """What needs attention, one sentence each."""
        return [
            condition_line(row.group, condition)
            for row in self.rows.values()
            if row.status is not None
            for condition in row.status["conditions"]
        ]


def event_words(event: Event) -> str:
    """What happened, without time and group: "granted b3 (42 ms)"."""
    where = f" on {event.node}" if event.node else ""
    took = f" ({duration(event.duration_ms / 1000)})" if event.duration_ms else ""
    return f"{event.kind.replace('_', ' ')}{' ' if event.job else ''}{event.job}{where}{took}"


def duration(seconds: float) -> str:
    """Two figures at most: "42 ms", "3.1 s", "4 min", "2 h 5 min", "3 d"."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return age(seconds)


def age(seconds: float) -> str:
    """As `duration`, in whole seconds: it is shown while it grows."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        hours, rest = divmod(whole, 3600)
        return f"{hours} h {rest // 60} min" if rest >= 60 else f"{hours} h"
    return f"{whole // 86400} d"


def _cells(row: Row, now_s: float) -> Cells:
    last = event_words(row.last) if row.last is not None else "-"
    if row.status is None:
        return Cells(row.group, "?", "-", "-", "-", "-", last)
    since = row.status["since"]
    kinds = list(dict.fromkeys(condition["type"] for condition in row.status["conditions"]))
    return Cells(
        group=row.group,
        state=row.status["state"],
        holder=holding(row.status),
        since=age(now_s - since) if since is not None else "-",
        queue=waiting(row.status),
        condition=", ".join(kinds) or "-",
        last=last,
    )
