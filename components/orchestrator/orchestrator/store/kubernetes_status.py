"""The status of a TimeSliceGroup: what the store keeps, under names that Kubernetes' users expect, and what people see.

Pure functions, both ways.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.types import (
    EndedLease,
    GroupId,
    GroupRecord,
    GroupState,
    GroupView,
    IntentRecord,
    LeaseRecord,
    ProcessRef,
    Share,
    WaiterRecord,
)
from orchestrator.store.codec import BadRecord, Codec

QUEUE_KEPT = 200
"""Waiters whose places survive a restart; later ones queue anew."""
ENDED_KEPT_BYTES = 32 << 10
"""Outcomes of leases that are kept, the newest always: some hundred. etcd takes 1.5 MB in all."""

Status = dict[str, Any]

STATES = {
    GroupState.UNKNOWN: "Unknown",
    GroupState.IDLE: "Idle",
    GroupState.IDLE_YIELDED: "IdleYielded",
    GroupState.LOCKED: "Locked",
    GroupState.SWITCHING: "Switching",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a status says that the store must give back."""

    epoch: int = 0
    """Whose leader wrote it last; 0: nobody did."""
    record: GroupRecord | None = None
    ended: tuple[EndedLease, ...] = ()
    waiters: tuple[WaiterRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownCondition:
    """A condition as `kubectl` shows it."""

    type: str
    status: bool
    reason: str
    message: str
    since: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What people see besides what is kept."""

    state: GroupState
    waiting: int
    held_percent: int
    handoffs: int
    conditions: tuple[ShownCondition, ...]
    message: str


def shown(view: GroupView, wall: Callable[[float], float]) -> Shown:
    """What people see of a group; `wall` makes the core's times seconds since 1970."""
    conditions = tuple(
        ShownCondition(
            condition.kind.value, True, condition.kind.value,
            " ".join(filter(None, [f"{condition.reason.rstrip('.')}.", condition.advice])),
            timestamp(wall(condition.since_s)))
        for condition in _first_of_each_kind(view))
    return Shown(
        state=view.state,
        waiting=len(view.waiters),
        held_percent=max(0, min(100, round(view.held_share * 100))),
        handoffs=view.handoffs_total,
        conditions=conditions,
        message="; ".join(f"{condition.kind.value}: {condition.reason}" for condition in view.conditions[:3]),
    )


def build(
    before: Mapping[str, Any],
    kept: Kept,
    people_see: Shown | None,
    now: str,
) -> Status:
    """The whole status: what must be kept, and what people see (None: as before). `now` is a timestamp."""
    record = kept.record
    waiters = sorted(kept.waiters, key=lambda waiter: waiter.sequence)
    status: Status = {"epoch": kept.epoch}
    if record is not None:
        data = _GROUP.to_data(record)
        status |= {
            "version": record.version,
            "token": record.last_token,
            "lease": _with_since(_outward(data.get("lease")), before.get("lease"), now),
            "intent": _outward(data.get("intent")),
            "resident": record.resident,
            "lastYield": _outward(data.get("last_yield")),
            "faulted": [{"job": job, "reason": reason} for job, reason in record.faulted],
        }
    status |= {
        "ended": _newest(map(_outward, map(_ENDED.to_data, sorted(kept.ended, key=lambda lease: lease.token)))),
        "queue": [_outward(_WAITER.to_data(waiter)) for waiter in waiters[:QUEUE_KEPT]],
        "queueLength": len(waiters) if people_see is None else people_see.waiting,
        "state": _state(record, people_see),
    }
    lease = status.get("lease") or {}
    before_lease = before.get("lease") or {}
    is_same = (status["state"], lease.get("token")) == (before.get("state"), before_lease.get("token"))
    status["since"] = before["since"] if is_same and "since" in before else now
    if people_see is None:
        status |= {name: before[name] for name in ("shares", "conditions", "message") if name in before}
    else:
        status |= {
            "shares": {"heldPercent": people_see.held_percent, "handoffs": people_see.handoffs},
            "conditions": [_condition(condition) for condition in people_see.conditions],
            "message": people_see.message,
        }
    return {name: value for name, value in status.items() if value not in (None, [], "")}


def parse(group: GroupId, status: Mapping[str, Any]) -> Kept:
    """What a status keeps; BadRecord: it was not written by us."""
    try:
        record = _record(group, status) if "version" in status else None
        return Kept(
            int(status.get("epoch", 0)),
            record,
            tuple(_ENDED.from_data(_inward(group, lease)) for lease in status.get("ended", ())),
            tuple(_WAITER.from_data(_inward(group, waiter)) for waiter in status.get("queue", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"the status of group {group!r} cannot be read: {error}") from error


def timestamp(at_s: float) -> str:
    """Seconds since 1970 as Kubernetes writes times."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- helpers

_GROUP, _ENDED, _WAITER = Codec(GroupRecord), Codec(EndedLease), Codec(WaiterRecord)


def _outward_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join("Seconds" if part == "s" else part.capitalize() for part in others)


_INWARD = {
    _outward_name(field.name): field.name
    for kept_type in (LeaseRecord, Share, ProcessRef, IntentRecord, EndedLease, WaiterRecord)
    for field in fields(kept_type)
}
_OURS = {"since"}
"""What stands beside a record's fields, for people."""


def _outward(data: Any) -> Any:
    """A record's data under the names of the API, without the group, which is the object."""
    if isinstance(data, dict):
        return {_outward_name(name): _outward(value) for name, value in data.items() if name != "group"}
    return [_outward(value) for value in data] if isinstance(data, list) else data


def _inward(group: GroupId, data: Mapping[str, Any]) -> dict[str, Any]:
    """The way back, for a record that names its group."""
    names = _inward_names(data)
    assert isinstance(names, dict)
    return {"group": group, **names}


def _inward_names(data: Any) -> Any:
    if isinstance(data, dict):
        return {_INWARD.get(name, name): _inward_names(value) for name, value in data.items() if name not in _OURS}
    return [_inward_names(value) for value in data] if isinstance(data, list) else data


def _record(group: GroupId, status: Mapping[str, Any]) -> GroupRecord:
    data = {
        "version": status["version"],
        "last_token": status.get("token", 0),
        "lease": _inward(group, status["lease"]) if status.get("lease") else None,
        "intent": _inward_names(status["intent"]) if status.get("intent") else None,
        "resident": status.get("resident"),
        "last_yield": _inward(group, status["lastYield"]) if status.get("lastYield") else None,
        "faulted": [[entry["job"], entry["reason"]] for entry in status.get("faulted", ())],
    }
    record = _GROUP.from_data({"group": group, **data})
    assert isinstance(record, GroupRecord)
    return record


def _with_since(lease: Any, before: Mapping[str, Any] | None, now: str) -> Any:
    if lease is None:
        return None
    is_same = before is not None and before.get("token") == lease["token"]
    return {**lease, "since": before["since"] if is_same and before and "since" in before else now}


def _newest(leases: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    room = ENDED_KEPT_BYTES
    for lease in reversed(list(leases)):
        room -= len(json.dumps(lease))
        if room < 0 and kept:
            break
        kept.append(lease)
    return kept[::-1]


def _state(record: GroupRecord | None, people_see: Shown | None) -> str:
    """From the record, for that is what is true when the write is done; the view is of the moment before."""
    if people_see is not None and people_see.state is GroupState.UNKNOWN:
        return STATES[GroupState.UNKNOWN]
    if record is None:
        return STATES[GroupState.IDLE]
    if record.lease is not None:
        return STATES[GroupState.LOCKED]
    if record.intent is not None:
        return STATES[GroupState.SWITCHING]
    if people_see is not None and people_see.state is GroupState.IDLE:
        return STATES[GroupState.IDLE]
    return STATES[GroupState.IDLE if record.resident is None else GroupState.IDLE_YIELDED]


def _first_of_each_kind(view: GroupView) -> Iterable[Any]:
    """A list map has one of each type; the message says how many there are by naming them."""
    return {condition.kind: condition for condition in reversed(view.conditions)}.values()


def _condition(condition: ShownCondition) -> dict[str, str]:
    return {
        "type": condition.type,
        "status": str(condition.status),
        "lastTransitionTime": condition.since,
        "reason": condition.reason,
        "message": condition.message,
    }
