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


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where one process is, what it is at, and where it shall be."""

    process: ProcessRecord
    work: Work
    state: DriverState
    in_flight: Verb | None
    goal: DriverState


_NOTHING: Mapping[ProcessId, DriverState] = {}


def plan(
    operation: Operation,
    processes: Iterable[ProcessRecord],
    now: float,
    assumed: Mapping[ProcessId, DriverState] = _NOTHING,
) -> Next:
    """`processes`: those of the operation that still live, in a stable order; of one that waits, those that it would
    begin with. `assumed`: suppose that these are there by then, and nothing in flight.
    """
    open_: list[_Stand] = []
    unsettled: list[_Stand] = []
    back: list[_Stand] = []
    for process in processes:
        work = operation.work.get(process.id) or Work(process.state)
        state, in_flight = process.state, work.in_flight
        if process.id in assumed:
            state, in_flight = assumed[process.id], None
        if state in (DriverState.NONE, DriverState.FAILED) and in_flight is None:
            continue
        stand = _Stand(process, work, state, in_flight, operation.goal(work, state))
        if not state.is_settled or in_flight is not None:
            unsettled.append(stand)
        (back if state is stand.goal else open_).append(stand)
    lock = [o for o in open_ if o.state is DriverState.RUNNING]
    if unsettled:
        # Locks go out together; everything else waits until the driver has said where each process is.
        ask = [o for o in unsettled if not o.state.is_settled]
        together = ask + (lock if all(o.in_flight in (None, Verb.LOCK, Verb.STATE) for o in unsettled) else [])
        return _start(together, now, {o.process.id: Verb.LOCK if o in lock else Verb.STATE for o in together})
    if lock:
        return _start(lock, now, {o.process.id: Verb.LOCK for o in lock})
    for one in open_:
        if one.state is DriverState.LOCKED and one.goal is DriverState.CHECKPOINTED:
            return _start([one], now, {one.process.id: Verb.CHECKPOINT})
    restore = [o for o in open_ if o.state is DriverState.CHECKPOINTED]
    if restore:
        need: dict[AcceleratorId, int] = {}
        for one in restore:
            # One whose saved size nobody knows any more asks for the margin at least.
            for accelerator, size in (one.process.saved or dict.fromkeys(one.process.seen_on, 0)).items():
                need[accelerator] = need.get(accelerator, 0) + size
        return _start(restore[:1], now, {restore[0].process.id: Verb.RESTORE}, need)
    if open_:
        return _start(open_, now, {o.process.id: Verb.UNLOCK for o in open_})
    for one in back:
        # Where it shall be, as it seems, but an abandoned call may move it yet: the same call again settles that.
        if one.work.abandoned is not None and one.work.is_open(one.state):
            return _start([one], now, {one.process.id: one.work.abandoned}, dict(one.process.saved))
    return Reached()


def _start(
    wanted: list[_Stand],
    now: float,
    verbs: Mapping[ProcessId, Verb],
    need: Mapping[AcceleratorId, int] | None = None,
) -> Next:
    """Start what neither runs nor waits for its retry; else say until when to wait."""
    idle = [one for one in wanted if one.in_flight is None]
    ready = [one.process.id for one in idle if one.work.retry_at <= now]
    if ready:
        return Steps(tuple(Step(process, verbs[process], need) for process in ready))
    return Wait(min((one.work.retry_at for one in idle), default=None))
