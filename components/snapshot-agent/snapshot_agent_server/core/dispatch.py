"""Which effects of one event go at once, and which behind its records. A pure function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from snapshot_agent_server.core.effects import (
    Accept,
    Ahead,
    CallDriver,
    Effect,
    EndChannel,
    ForgetWorkload,
    KillProcesses,
    Record,
    RecordEpoch,
    RecordFence,
    RecordOperation,
    RecordProcess,
    RecordTree,
    RecordTurn,
    RecordWorkload,
    Refuse,
    SendCommand,
    StopProgram,
    WatchProcess,
)

LAZY = int(Ahead.NOTHING)
"""The level of records that nobody waits for."""
_EVERYTHING = Ahead.ORDER + 1
"""That of records which no call goes ahead of."""


class OnDisk:
    """All is on disk that the calls of an earlier dispatch went ahead of: what came of them may be heard."""


Held = Effect | OnDisk


@dataclass(slots=True)
class Dispatch:
    records: list[Record] = field(default_factory=list)
    level: int = LAZY
    """How far ahead a call must be allowed to go, to be made before the records are on disk."""
    at_once: list[Effect] = field(default_factory=list)
    is_withheld: bool = False
    """What comes of the calls that go at once is to be heard when all is on disk."""
    behind: list[Held] = field(default_factory=list)
    """When all that is to be on disk is; at once, but last, if that is so already."""
    public: list[Effect] = field(default_factory=list)
    """Messages for watchers: while the driver and the disk work."""
    must_wait: bool = False
    """Something is to be on disk first, of this event or of an earlier one."""


def dispatch(effects: Iterable[Effect], *, holding: int) -> Dispatch:
    """Args:
        holding: the highest level of what earlier events are to have on disk, and have not yet.
    """
    todo = Dispatch()
    calls: list[Effect] = []
    answers: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Record):
            todo.records.append(effect)
            todo.level = max(todo.level, _level_of(effect))
        elif isinstance(effect, CallDriver | StopProgram | SendCommand):
            calls.append(effect)
        elif isinstance(effect, Accept | Refuse | KillProcesses | WatchProcess | EndChannel):
            answers.append(effect)
        else:
            todo.public.append(effect)
    todo.records = _once_each(todo.records)
    todo.must_wait = max(holding, todo.level) > LAZY
    for call in calls:
        (todo.at_once if _may_go(call, todo.level, holding) else todo.behind).append(call)
    todo.behind += answers
    todo.is_withheld = todo.must_wait and any(
        isinstance(call, CallDriver) and call.ahead_of is Ahead.ORDER for call in todo.at_once
    )
    if todo.is_withheld:
        todo.behind.insert(0, OnDisk())
    return todo


def _may_go(call: Effect, level: int, holding: int) -> bool:
    """An order to stop goes ahead of an earlier turn too, which nobody waits for; nothing else of an earlier record."""
    if max(level, holding) == LAZY:
        return True
    if not isinstance(call, CallDriver):
        return False
    may_be_held = Ahead.TURN if call.ahead_of is Ahead.ORDER else LAZY
    return call.ahead_of >= level and may_be_held >= holding


def _level_of(record: Record) -> int:
    match record:
        case RecordTurn():
            return Ahead.TURN
        case RecordFence():
            return Ahead.ORDER
        case RecordOperation(is_lazy=False):
            return Ahead.ORDER
        case RecordProcess(is_lazy=False) | RecordEpoch() | RecordTree() | RecordWorkload() | ForgetWorkload():
            return _EVERYTHING
        case _:
            return LAZY


def _once_each(records: list[Record]) -> list[Record]:
    """An operation is recorded as it is now, so once is enough where it was accepted and started at once: the last."""
    last = {id(record.operation): record for record in records if isinstance(record, RecordOperation)}
    return [r for r in records if not isinstance(r, RecordOperation) or last[id(r.operation)] is r]
