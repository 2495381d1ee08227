"""What people are shown of a group, computed on demand; changes nothing."""

from __future__ import annotations

from orchestrator.core.conditions import conditions, since
from orchestrator.core.group import Group
from orchestrator.core.sessions import Sessions
from orchestrator.core.types import (
    ContextState,
    GroupState,
    GroupView,
    JobId,
    NodeContextView,
    WaiterView,
)

ON_DEVICE = (ContextState.RUNNING, ContextState.TRANSITIONING, ContextState.FAULTED)


def view_group(group: Group, sessions: Sessions, now: float) -> GroupView:
    """Return everything that status shows of a group."""
    site, holding, switch = group.site, group.holding, group.switch
    held_s = group.leases.held_s + (now - holding.placed_s if holding is not None and holding.is_placed else 0.0)
    seen_s = now - group.first_seen_s
    lease = holding.lease if holding is not None and holding.is_recorded else None
    return GroupView(
        group=group.id,
        state=_state(group, now),
        state_since_s=since(group),
        lease=lease,
        granted_at_s=holding.since_s if holding is not None and lease is not None else None,
        next_job=switch.target if switch is not None else None,
        loaded_job=_loaded_job(group),
        waiters=tuple(
            WaiterView(waiter.job, waiter.request, now - waiter.arrived_s, waiter.priority) for waiter in group.queue
        ),
        resident_jobs=tuple(sorted(job for job in site.jobs() if site.has(job, *ON_DEVICE))),
        held_share=held_s / seen_s if seen_s > 0 else 0.0,
        handoffs_total=group.leases.handoffs_total,
        conditions=conditions(group, sessions, now),
        accelerators=site.accelerators(),
        contexts=tuple(
            NodeContextView(node.id, context)
            for node in site.nodes
            for _, context in sorted(node.contexts(group.id).items())
        ),
    )


def _state(group: Group, now: float) -> GroupState:
    if any(group.site.silence_since(node, now) is not None for node in group.site.nodes):
        return GroupState.UNKNOWN
    if group.switch is not None:
        return GroupState.SWITCHING
    if group.holding is not None:
        return GroupState.LOCKED if group.holding.is_placed else GroupState.SWITCHING
    if any(group.site.has(job, *ON_DEVICE) for job in group.site.jobs()):
        return GroupState.IDLE_YIELDED
    return GroupState.IDLE


def _loaded_job(group: Group) -> JobId | None:
    if group.holding is not None:
        return group.holding.lease.job
    resident = group.site.resident
    return resident if resident is not None and group.site.has(resident, *ON_DEVICE) else None
