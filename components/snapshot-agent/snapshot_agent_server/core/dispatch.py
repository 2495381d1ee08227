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
    ForgetOperation,
    ForgetProcess,
    ForgetTrees,
    ForgetWorkload,
    KillProcesses,
    Record,
    RecordEpoch,
    RecordFence,
    RecordGroups,
    RecordOperation,
    RecordPods,
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
        match effect:
            case RecordOperation():
                # As it is now, so once is enough where it was accepted and started at once.
                kept = [record for record in todo.records if not _is_of(record, effect)]
                todo.records = [*kept, effect]
                todo.level = max(todo.level, LAZY if effect.is_lazy else Ahead.ORDER)
            case RecordProcess():
                todo.records.append(effect)
                todo.level = max(todo.level, LAZY if effect.is_lazy else _EVERYTHING)
            case RecordTurn():
                todo.records.append(effect)
                todo.level = max(todo.level, Ahead.TURN)
            case RecordFence():
                todo.records.append(effect)
                todo.level = max(todo.level, Ahead.ORDER)
            case RecordEpoch() | RecordTree() | RecordWorkload() | ForgetWorkload():
                todo.records.append(effect)
                todo.level = _EVERYTHING
            case ForgetProcess() | ForgetTrees() | ForgetOperation() | RecordPods() | RecordGroups():
                todo.records.append(effect)
            case CallDriver() | StopProgram() | SendCommand():
                calls.append(effect)
            case Accept() | Refuse() | KillProcesses() | WatchProcess() | EndChannel():
                answers.append(effect)
            case _:
                todo.public.append(effect)
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


def _is_of(record: Record, later: RecordOperation) -> bool:
    return isinstance(record, RecordOperation) and record.operation is later.operation
