"""A group's status as plain data, with the names of the wire: what --json prints, and what the tables are made of."""

from __future__ import annotations

import re
from typing import Any

from timeslice._core import wire
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

_ACTION = re.compile(r"ACTION_([A-Z_]+)")


def group_data(group: pb2.GroupStatus) -> dict[str, Any]:
    """Times are seconds since 1970 on the orchestrator's wall clock, None where it says none."""
    lease = group.lease if group.HasField("lease") else None
    return {
        "group": group.group_id,
        "state": wire.group_state(group.group_state).value,
        "since": group.state_timestamp.ToMilliseconds() / 1000 if group.HasField("state_timestamp") else None,
        "holder": group.locking_job or None,
        "active_job": group.active_job or None,
        "loaded_job": group.loaded_job or None,
        "fencing_token": lease.fencing_token if lease is not None else None,
        "waiters": [
            {"job": w.job_id, "waited_ms": w.waited_ms, "priority": w.priority, "request": w.request_id}
            for w in group.waiters
        ],
        "waiter_queue_depth": group.waiter_queue_depth,
        "resident_jobs": list(group.resident_jobs),
        "held_share": group.held_share,
        "handoffs_total": group.handoffs_total,
        "accelerators": list(group.accelerators),
        "conditions": [
            {"type": c.type, "reason": c.reason, "jobs": list(c.jobs), "advice": c.advice} for c in group.conditions
        ],
    }


def holding(group: dict[str, Any]) -> str:
    """Who holds the group; "-> JOB" for the job that a switch is under way to, "-" for nobody.

    The wire names both as the holder (`locking_job`), for clients that know no leases.
    """
    if not group["holder"]:
        return "-"
    is_on_its_way = group["state"] == "SWITCHING" and group["fencing_token"] is None
    return f"-> {group['holder']}" if is_on_its_way else str(group["holder"])


def waiting(group: dict[str, Any]) -> str:
    """The next waiters, and how many more there are; "-" for none."""
    shown = [w["job"] for w in group["waiters"][:3]]
    more = max(group["waiter_queue_depth"], len(group["waiters"])) - len(shown)
    return ", ".join(shown) + (f" +{more}" if more > 0 else "") or "-"


def condition_line(group: str, condition: dict[str, Any]) -> str:
    """A condition in one sentence: what is wrong, with whom, and what to do about it.

    The orchestrator names actions as the wire does (ACTION_KILL); people are told the command.
    """
    jobs = f" ({', '.join(condition['jobs'])})" if condition["jobs"] else ""
    advice = f"; {condition['advice']}" if condition["advice"] else ""
    return f"{group}: {condition['type']}: {condition['reason']}{jobs}{_ACTION.sub(_command, advice)}"


def _command(action: re.Match[str]) -> str:
    return f"`timeslice evict {action[1].lower().replace('_', '-')}`"
