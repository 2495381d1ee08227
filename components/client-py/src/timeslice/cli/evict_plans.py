"""What an eviction would do and to whom: a group's status in, a request and a sentence out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timeslice.cli.errors import CommandError
from timeslice.cli.watch_board import age
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

Action = pb2.EvictRequest


@dataclass(frozen=True)
class Plan:
    """One Evict, not sent yet."""

    request: pb2.EvictRequest
    what: str
    """Goes on after "this would ": what is done, to whom, and what that costs them."""
    costs_work: bool
    """A job loses its turn, its place or its processes: ask before."""


def end_lease(group: dict[str, Any], job: str | None, reason: str, now_s: float) -> Plan:
    """End the lease of whoever holds the group, or of `job` alone. `now_s`: seconds since 1970.

    Raises:
        CommandError: the group is not held, or not by that job.
    """
    name, holder = group["group"], group["holder"]
    if holder is None:
        raise CommandError(f"group {name!r} is held by nobody; nothing was changed")
    if job not in (None, holder):
        raise CommandError(f"group {name!r} is held by job {holder!r}, not by {job!r}; nothing was changed")
    since = f", {group['state']} for {age(now_s - group['since'])}" if group["since"] is not None else ""
    then = f"; next in line is job {group['waiters'][0]['job']!r}" if group["waiters"] else "; nobody waits"
    return Plan(
        pb2.EvictRequest(group_id=name, job_id=holder, reason=reason, action=Action.ACTION_END_LEASE),
        f"end the lease of job {holder!r} on group {name!r}{since}: the job is frozen and its device memory saved, and"
        f" its client is told that the lease is lost{then}",
        costs_work=True,
    )


def drop_waiter(group: dict[str, Any], job: str | None, request: str | None, reason: str) -> Plan:
    """Take the waiters of a job, or one request, out of the queue.

    Raises:
        CommandError: no such waiter.
    """
    name = group["group"]
    found = [w for w in group["waiters"] if job in (None, w["job"]) and request in (None, w["request"])]
    if not found:
        wanted = f"request {request!r}" if request is not None else f"job {job!r}"
        there = _named("job", [w["job"] for w in group["waiters"]]) or "nobody"
        raise CommandError(f"{wanted} does not wait for group {name!r} (waiting: {there}); nothing was changed")
    waited = max(w["waited_ms"] for w in found) / 1000
    more = f" ({len(found)} requests)" if len(found) > 1 else ""
    return Plan(
        pb2.EvictRequest(
            group_id=name, job_id=found[0]["job"], request_id=request or "", reason=reason,
            action=Action.ACTION_DROP_WAITER,
        ),
        f"take job {found[0]['job']!r}{more} out of the queue of group {name!r}, where it has waited for {age(waited)}:"
        " its acquire fails",
        costs_work=True,
    )  # fmt: skip


def clear_fault(group: dict[str, Any], job: str, reason: str) -> Plan:
    """Forget a job's fault; whether there is one is the orchestrator's to say."""
    return Plan(
        pb2.EvictRequest(group_id=group["group"], job_id=job, reason=reason, action=Action.ACTION_CLEAR_FAULT),
        f"forget the fault of job {job!r} in group {group['group']!r} and look at its context anew",
        costs_work=False,
    )


def kill(group: dict[str, Any], job: str, reason: str) -> Plan:
    """Kill a job's processes on the group's nodes.

    Raises:
        CommandError: the group's nodes know no processes of this job.
    """
    name = group["group"]
    found = [c for c in group["contexts"] if c["job"] == job]
    if not found:
        there = _named("job", [c["job"] for c in group["contexts"]]) or "none"
        raise CommandError(f"group {name!r} has no processes of job {job!r} (known: {there}); nothing was changed")
    where = ", ".join(f"node {c['node']!r} ({c['state']})" for c in found)
    return Plan(
        pb2.EvictRequest(group_id=name, job_id=job, reason=reason, action=Action.ACTION_KILL),
        f"kill the processes of job {job!r} in group {name!r} on {where}: what they have not written to disk is lost",
        costs_work=True,
    )


def forget_node(groups: Sequence[dict[str, Any]], node: str, reason: str) -> Plan:
    """Give a node up for good, in all groups.

    Raises:
        CommandError: there is no group at all.
    """
    if not groups:
        raise CommandError("there are no groups, so there is no node to forget")
    members = [g["group"] for g in groups if node in nodes_of(g)]
    jobs = {c["job"] for g in groups for c in g["contexts"] if c["node"] == node}
    lost = f"; {_named('job', jobs)} with memory there will be faulted" if jobs else ""
    shown = f"in {_named('group', members)}" if members else "(no group shows anything of it)"
    return Plan(
        pb2.EvictRequest(
            group_id=(members or [groups[0]["group"]])[0], node=node, reason=reason, action=Action.ACTION_FORGET_NODE
        ),
        f"give up node {node!r} for good {shown}{lost}. Only where the machine is gone: if it still runs, so do its"
        " jobs, beside the next ones",
        costs_work=True,
    )


def nodes_of(group: dict[str, Any]) -> set[str]:
    """The nodes that show in a group: where it has accelerators ("NODE/ACCELERATOR") or contexts."""
    return {a.partition("/")[0] for a in group["accelerators"]} | {c["node"] for c in group["contexts"]}


def _named(kind: str, names: Sequence[str] | set[str]) -> str:
    """ "job 'a'", "jobs 'a' and 'b'"; empty for none."""
    quoted = [repr(name) for name in dict.fromkeys(sorted(names))]
    if not quoted:
        return ""
    listed = f"{', '.join(quoted[:-1])} and {quoted[-1]}" if len(quoted) > 1 else quoted[0]
    return f"{kind}{'s' if len(quoted) > 1 else ''} {listed}"
