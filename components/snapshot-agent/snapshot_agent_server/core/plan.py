"""The next driver calls of an operation, from where its processes are and where they shall be. A pure function.

Lock all, in parallel; then checkpoint one after the other; then restore one after the other; then unlock all. The same
order serves the way forward, the way back, and the way on after a restart of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from snapshot_agent_server.core.contexts import ProcessRecord
from snapshot_agent_server.core.ids import AcceleratorId, ProcessId
from snapshot_agent_server.core.operations import Operation, Work
from snapshot_agent_server.core.outcomes import DriverState, Verb


@dataclass(frozen=True, slots=True)
class Step:
    """Ask the driver this of that process. `need`: what all restores that remain will take, per accelerator."""

    process: ProcessId
    verb: Verb
    need: Mapping[AcceleratorId, int] | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until an answer comes, or until this time."""

    until: float | None


@dataclass(frozen=True, slots=True)
class Reached:
    """Every process is where it shall be, or cannot be moved (FAILED, or no CUDA in it)."""


Next = Steps | Wait | Reached
_Open = tuple[ProcessRecord, Work, DriverState]


def plan(operation: Operation, processes: Iterable[ProcessRecord], now: float) -> Next:
    """`processes`: those of the operation that still live, in a stable order."""
    open_: list[_Open] = []
    unsettled: list[_Open] = []
    back: list[_Open] = []
    for process in processes:
        work = operation.work[process.id]
        if process.state in (DriverState.NONE, DriverState.FAILED) and work.in_flight is None:
            continue
        goal = operation.goal(work, process.state)
        if not process.state.is_settled or work.in_flight is not None:
            unsettled.append((process, work, goal))
        (back if process.state is goal else open_).append((process, work, goal))
    lock = [o for o in open_ if o[0].state is DriverState.RUNNING]
    if unsettled:
        # Locks go out together; everything else waits until the driver has said where each process is.
        ask = [o for o in unsettled if not o[0].state.is_settled]
        together = ask + (lock if all(o[1].in_flight in (None, Verb.LOCK, Verb.STATE) for o in unsettled) else [])
        return _start(together, now, {o[0].id: Verb.LOCK if o in lock else Verb.STATE for o in together})
    if lock:
        return _start(lock, now, {o[0].id: Verb.LOCK for o in lock})
    for process, work, goal in open_:
        if process.state is DriverState.LOCKED and goal is DriverState.CHECKPOINTED:
            return _start([(process, work, goal)], now, {process.id: Verb.CHECKPOINT})
    restore = [o for o in open_ if o[0].state is DriverState.CHECKPOINTED]
    if restore:
        need: dict[AcceleratorId, int] = {}
        for process, _, _ in restore:
            # One whose saved size nobody knows any more asks for the margin at least.
            for accelerator, size in (process.saved or dict.fromkeys(process.seen_on, 0)).items():
                need[accelerator] = need.get(accelerator, 0) + size
        return _start(restore[:1], now, {restore[0][0].id: Verb.RESTORE}, need)
    if open_:
        return _start(open_, now, {o[0].id: Verb.UNLOCK for o in open_})
    for process, work, goal in back:
        # Where it shall be, as it seems, but an abandoned call may move it yet: the same call again settles that.
        if work.abandoned is not None and work.is_open(process.state):
            return _start([(process, work, goal)], now, {process.id: work.abandoned}, dict(process.saved))
    return Reached()


def _start(
    wanted: list[_Open],
    now: float,
    verbs: Mapping[ProcessId, Verb],
    need: Mapping[AcceleratorId, int] | None = None,
) -> Next:
    """Start what neither runs nor waits for its retry; else say until when to wait."""
    idle = [(process, work) for process, work, _ in wanted if work.in_flight is None]
    ready = [process for process, work in idle if work.retry_at <= now]
    if ready:
        return Steps(tuple(Step(process.id, verbs[process.id], need) for process in ready))
    return Wait(min((work.retry_at for _, work in idle), default=None))
