"""What people are shown of a group, computed on demand; changes nothing."""

from __future__ import annotations

from orchestrator.core.group import Group
from orchestrator.core.nodes import is_unexplained
from orchestrator.core.sessions import Sessions
from orchestrator.core.types import (
    Condition,
    ConditionKind,
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
        state_since_s=_since(group),
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
        conditions=_conditions(group, sessions, now),
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


def _since(group: Group) -> float:
    return max(group.leases.changed_s, group.switched_s)


def _loaded_job(group: Group) -> JobId | None:
    if group.holding is not None:
        return group.holding.lease.job
    resident = group.site.resident
    return resident if resident is not None and group.site.has(resident, *ON_DEVICE) else None


def _conditions(group: Group, sessions: Sessions, now: float) -> tuple[Condition, ...]:
    site = group.site
    found: list[Condition] = []
    if group.overlap is not None:
        found.append(Condition(ConditionKind.OVERLAP, group.overlap, group.first_seen_s, (),
                               "Give each accelerator to one group."))
    blocked = group.switch.blocked if group.switch is not None else None
    if blocked is not None:
        found.append(
            Condition(
                ConditionKind.BLOCKED,
                f"job {blocked.job!r}: {blocked.reason}; {blocked.missing_bytes} bytes are missing",
                site.blocked_since.get(blocked.job, now),
                (blocked.job,),
                "Yield and end that job, or evict it with ACTION_KILL; its next turn is not affected by waiting.",
            )
        )
    for job, since_s in sorted(group.intruders.items()):
        found.append(Condition(ConditionKind.INTRUDER, f"job {job!r} uses the device without the lease; it is locked",
                               since_s, (job,), "Let the job acquire the group before it touches the device."))
    for job, reason in sorted(site.faults.items()):
        found.append(Condition(ConditionKind.FAULTED, f"job {job!r}: {reason}", _since(group), (job,),
                               "End its processes and start them anew, or evict with ACTION_CLEAR_FAULT."))
    for node in site.nodes:
        since = group.site.silence_since(node, now)
        if since is not None:
            reason = node.disconnect_reason if not node.is_connected else "its agent leaves calls unanswered"
            found.append(Condition(ConditionKind.UNREACHABLE, f"node {node.id!r}: {reason}", since, (),
                                   "Look at the agent there; if the node is gone for good, ACTION_FORGET_NODE."))
        for job, context in sorted(node.contexts(group.id).items()):
            if is_unexplained(context):
                found.append(Condition(ConditionKind.UNEXPLAINED, f"node {node.id!r}, job {job!r}: {context.reason}",
                                       node.since_s, (job,),
                                       "Restart the job's processes, or evict with ACTION_CLEAR_FAULT."))
            elif context.state is ContextState.TRANSITIONING and (node.id, job) in site.indeterminate:
                error = site.indeterminate[(node.id, job)]
                found.append(Condition(ConditionKind.INDETERMINATE, f"node {node.id!r}, job {job!r}: {error}",
                                       _since(group), (job,),
                                       "Nothing can be done before the driver answers, except to end the processes."))
    if group.ledger.failure is not None:
        found.append(Condition(ConditionKind.STORE_UNAVAILABLE, group.ledger.failure, _since(group), (),
                               "No new lease before the store takes records again; it is tried all the time."))
    holding = group.holding
    for session in holding.lease.holders if holding is not None else ():
        if holding is not None and session is not None and sessions.is_starved(session, now):
            found.append(Condition(ConditionKind.STARVED, f"session {session!r} is not renewed", now,
                                   (holding.lease.job,), "The client's threads get no time; its lease stands."))
    configured = {f"{node}/{accelerator}" for node, accelerator in site.config.accelerators}
    if configured and site.is_known and configured != set(site.accelerators()):
        found.append(Condition(ConditionKind.MISCONFIGURED,
                               f"configured are {', '.join(sorted(configured))}; the agents say"
                               f" {', '.join(site.accelerators()) or 'none'}",
                               group.first_seen_s, (), "Correct --agent here or --group at the agent."))
    return tuple(found)
