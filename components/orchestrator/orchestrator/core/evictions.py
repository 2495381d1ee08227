"""What operators can do to a group: end a lease, drop waiters, clear a fault, kill processes."""

from __future__ import annotations

from typing import Literal, assert_never

from orchestrator.core import texts
from orchestrator.core.events import EvictRequested
from orchestrator.core.group import Group
from orchestrator.core.types import EvictAction, Refusal

OnGroup = Literal[EvictAction.END_LEASE, EvictAction.DROP_WAITER, EvictAction.CLEAR_FAULT, EvictAction.KILL]


def carry_out(action: OnGroup, event: EvictRequested, group: Group, now: float) -> list[str] | Refusal:
    """Do to a group what an operator asks for; return what was done, in words."""
    match action:
        case EvictAction.END_LEASE:
            holding = group.holding
            if holding is None or (event.job is not None and holding.lease.job != event.job):
                return texts.nothing_to_evict(group.id, f"no lease of job {event.job or ''!r}")
            group.evict(event.reason, now)
            return [f"lease {holding.lease.token} of job {holding.lease.job!r} ended"]
        case EvictAction.DROP_WAITER:
            waiters = [
                waiter
                for waiter in group.queue
                if (event.request is None or waiter.request == event.request)
                and (event.job is None or waiter.job == event.job)
            ]
            if not waiters or (event.request is None and event.job is None):
                return texts.nothing_to_evict(group.id, f"no waiter {event.request or event.job or ''!r}")
            for waiter in waiters:
                group.drop_waiter(waiter, event.reason)
            return [f"waiter {waiter.request!r} removed" for waiter in waiters]
        case EvictAction.CLEAR_FAULT:
            if event.job is None or not group.clear_fault(event.job):
                return texts.nothing_to_evict(group.id, f"no fault of job {event.job or ''!r}")
            return [f"fault of job {event.job!r} cleared"]
        case EvictAction.KILL:
            return _kill(event, group)
        case _:
            assert_never(action)


def _kill(event: EvictRequested, group: Group) -> list[str] | Refusal:
    killed: list[str] = []
    for node, context in group.site.contexts_of(event.job) if event.job is not None else ():
        if not node.is_connected:
            killed.append(f"node {node.id!r} is not connected: nobody is killed there; ask again when it is")
            continue
        group.site.operations.kill(node.id, context.job, group.site.token, event.reason)
        group.site.publish("killed", context.job, node.id, detail=event.reason)
        killed.append(f"processes {sorted(context.pids)} on node {node.id!r} are being killed")
    return killed or texts.nothing_to_evict(group.id, f"no processes of job {event.job or ''!r}")
