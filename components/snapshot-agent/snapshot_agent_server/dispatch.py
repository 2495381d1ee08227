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

_EVERYTHING = Ahead.ORDER + 1
"""What no call goes ahead of."""


class OnDisk:
    """All is on disk that the calls of an earlier dispatch went ahead of: what came of them may be heard."""


Held = Effect | OnDisk


@dataclass(slots=True)
class Dispatch:
    records: list[Record] = field(default_factory=list)
    is_lazy: bool = True
    """Nobody waits for the records."""
    at_once: list[Effect] = field(default_factory=list)
    is_withheld: bool = False
    """What comes of the calls that go at once is to be heard when all is on disk."""
    behind: list[Held] = field(default_factory=list)
    """When all that is to be on disk is; at once, but last, if that is so already."""
    public: list[Effect] = field(default_factory=list)
    """Messages for watchers: while the driver and the disk work."""
    must_wait: bool = False
    """Something is to be on disk first, of this event or of an earlier one."""


def dispatch(effects: Iterable[Effect], *, is_holding: bool) -> Dispatch:
    """Args:
        is_holding: a record of an earlier event that somebody waits for is not on disk yet.
    """
    sorted_ = Dispatch()
    calls: list[Effect] = []
    answers: list[Effect] = []
    waits: int = Ahead.NOTHING
    for effect in effects:
        match effect:
            case RecordOperation():
                # As it is now, so once is enough where it was accepted and started at once.
                kept = [record for record in sorted_.records if not _is_of(record, effect)]
                sorted_.records = [*kept, effect]
                waits = max(waits, Ahead.NOTHING if effect.is_lazy else Ahead.ORDER)
            case RecordProcess():
                sorted_.records.append(effect)
                waits = max(waits, Ahead.NOTHING if effect.is_lazy else _EVERYTHING)
            case RecordTurn():
                sorted_.records.append(effect)
                waits = max(waits, Ahead.TURN)
            case RecordFence():
                sorted_.records.append(effect)
                waits = max(waits, Ahead.ORDER)
            case RecordEpoch() | RecordTree() | RecordWorkload() | ForgetWorkload():
                sorted_.records.append(effect)
                waits = _EVERYTHING
            case ForgetProcess() | ForgetTrees() | ForgetOperation() | RecordPods() | RecordGroups():
                sorted_.records.append(effect)
            case CallDriver() | StopProgram() | SendCommand():
                calls.append(effect)
            case Accept() | Refuse() | KillProcesses() | WatchProcess() | EndChannel():
                answers.append(effect)
            case _:
                sorted_.public.append(effect)
    sorted_.is_lazy = waits == Ahead.NOTHING
    sorted_.must_wait = is_holding or not sorted_.is_lazy
    for call in calls:
        may_go = not sorted_.must_wait or (
            not is_holding and isinstance(call, CallDriver) and call.ahead_of >= waits
        )
        (sorted_.at_once if may_go else sorted_.behind).append(call)
    sorted_.behind += answers
    sorted_.is_withheld = sorted_.must_wait and any(
        isinstance(call, CallDriver) and call.ahead_of is Ahead.ORDER for call in sorted_.at_once
    )
    if sorted_.is_withheld:
        sorted_.behind.insert(0, OnDisk())
    return sorted_


def _is_of(record: Record, later: RecordOperation) -> bool:
    return isinstance(record, RecordOperation) and record.operation is later.operation
