"""Every refusal and notice, worded once: what happened, to what, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.types import (
    EndedLease,
    GroupId,
    JobId,
    Lease,
    NodeId,
    ProcessRef,
    Refusal,
    RefusalCode,
    RequestId,
    SessionId,
    Share,
    Token,
)
from orchestrator.core.wait_graph import WaitsFor


def unknown_group(group: GroupId) -> Refusal:
    """No such group is configured."""
    return Refusal(RefusalCode.NOT_FOUND, f"there is no group {group!r}. ListGroups names the groups that exist.")


def unknown_session(session: SessionId) -> Refusal:
    """The session was never opened here, or is over."""
    return Refusal(
        RefusalCode.FAILED_PRECONDITION,
        f"session {session!r} is not open; nothing was changed. Open it, or a new one, before this call.",
    )


def foreign_session(session: SessionId, job: JobId) -> Refusal:
    """The session belongs to another job."""
    return Refusal(
        RefusalCode.PERMISSION_DENIED, f"session {session!r} is not one of job {job!r}; nothing was changed."
    )


def session_over(session: SessionId) -> Refusal:
    """A waiter's session ended while it waited."""
    return Refusal(
        RefusalCode.FAILED_PRECONDITION,
        f"session {session!r} ended while this request waited. Open a new session and acquire again.",
    )


def foreign_request(request: RequestId, job: JobId) -> Refusal:
    """The request id is in use by another job."""
    return Refusal(
        RefusalCode.INVALID_ARGUMENT,
        f"request_id {request!r} names an attempt of another job than {job!r}. Use ids that are unique.",
    )


def request_over(request: RequestId, ended: EndedLease) -> Refusal:
    """The request got a lease that is over."""
    return Refusal(
        RefusalCode.ABORTED,
        f"request {request!r} was granted lease {ended.token} of group {ended.group!r}, which is over"
        f" ({ended.ending}{': ' + ended.reason if ended.reason else ''}). Acquire with a new request_id.",
    )


def job_faulted(job: JobId, group: GroupId, reason: str) -> Refusal:
    """The job cannot be served."""
    return Refusal(
        RefusalCode.FAILED_PRECONDITION,
        f"job {job!r} is faulted in group {group!r}: {reason}. End its processes and start them anew, or, once the"
        " cause is gone, clear the fault (Evict with ACTION_CLEAR_FAULT).",
    )


def cycle(group: GroupId, job: JobId, steps: tuple[WaitsFor, ...]) -> Refusal:
    """The request would close a cycle of waits."""
    words = "; ".join(
        f"job {step.job!r} waits for group {step.group!r}, which"
        f" {'is held by' if step.is_held else 'will first go to'} job {step.other!r}"
        for step in steps
    )
    return Refusal(
        RefusalCode.ABORTED,
        f"job {job!r} cannot wait for group {group!r}: nobody in this cycle would ever go on: {words}."
        " Yield what the job holds, then acquire in the order in which other jobs do.",
    )


def overlapping(group: GroupId, reason: str) -> Refusal:
    """The group shares an accelerator with an earlier one."""
    return Refusal(
        RefusalCode.FAILED_PRECONDITION,
        f"group {group!r} is not served: {reason}. Give each accelerator to one group.",
    )


def not_holder(group: GroupId, job: JobId, holder: JobId | None) -> Refusal:
    """A Yield by a job that does not hold the group."""
    holds = f"job {holder!r} does" if holder is not None else "nobody does"
    return Refusal(
        RefusalCode.PERMISSION_DENIED,
        f"job {job!r} does not hold group {group!r} ({holds}); nothing was changed.",
    )


def stale_lease(group: GroupId, token: Token, current: Token | None, ended: EndedLease | None) -> Refusal:
    """A Yield that names a lease which is over and was not given back by its job, or is not known."""
    how = f" ({ended.ending}{': ' + ended.reason if ended.reason else ''})" if ended is not None else ""
    return Refusal(
        RefusalCode.FAILED_PRECONDITION,
        f"lease {token} of group {group!r} is over{how} (current lease: {current or 'none'}); nothing was changed."
        " Acquire the group again before touching the device.",
    )


def not_recorded(group: GroupId, failure: str) -> Refusal:
    """The release could not be written."""
    return Refusal(
        RefusalCode.UNAVAILABLE,
        f"the release of group {group!r} could not be recorded yet: {failure}. It is tried again; repeat the call to"
        " learn when it is.",
    )


def dropped(request: RequestId, reason: str) -> Refusal:
    """An operator took the waiter out of the queue."""
    return Refusal(
        RefusalCode.ABORTED,
        f"request {request!r} was taken out of the queue by an operator: {reason or 'no reason given'}.",
    )


def nothing_to_evict(group: GroupId, what: str) -> Refusal:
    """An Evict that matches nothing."""
    return Refusal(RefusalCode.NOT_FOUND, f"group {group!r} has {what}; nothing was changed.")


def unknown_node(node: NodeId | None) -> Refusal:
    """An Evict that names no node of any group."""
    return Refusal(RefusalCode.NOT_FOUND, f"no group has a node {node or ''!r}; nothing was changed.")


# ---------------------------------------------------------------- several processes of a job

SHOWN_PROCESSES = 3


def holder(session: SessionId | None, processes: Sequence[ProcessRef]) -> str:
    """One that holds a lease, so that people find the process."""
    if session is None:
        return "a client without session"
    shown = ", ".join(f"{process.pid} on {process.node!r}" for process in processes[:SHOWN_PROCESSES])
    more = f" and {len(processes) - SHOWN_PROCESSES} more" if len(processes) > SHOWN_PROCESSES else ""
    return f"session {session!r}" + (f" (process {shown}{more})" if shown else "")


def lease_joined(newcomers: Sequence[Share]) -> str:
    """To the owner: others of its job use its lease."""
    named = ", ".join(holder(share.session, share.processes) for share in newcomers[:SHOWN_PROCESSES])
    more = f" and {len(newcomers) - SHOWN_PROCESSES} more" if len(newcomers) > SHOWN_PROCESSES else ""
    return (
        f"{named}{more} of the same job acquired too and share{'s' if len(newcomers) == 1 else ''} this lease."
        " The group is handed on when you yield, whatever the others are doing then."
    )


def lease_owned_by(lease: Lease) -> str:
    """To one that came later: whose the lease is."""
    return (
        f"{holder(lease.session, lease.processes)} of the same job owns this lease. The group is handed on when that"
        " one yields; your Yield ends only your share."
    )


def lease_left(share: Share, how: str) -> str:
    """To the owner: one of those who shared its lease does not any more."""
    return f"{holder(share.session, share.processes)}, which shared this lease, {how}."


def lease_inherited(lease: Lease, how: str, heir: Share) -> str:
    """To all that are left: the lease has another owner."""
    return (
        f"{holder(lease.session, lease.processes)}, which owned this lease, {how};"
        f" {holder(heir.session, heir.processes)} owns it now. The group is handed on when that one yields."
    )


def given_back_by(session: SessionId | None, lease: Lease) -> str:
    """To those who shared a lease: who ended it."""
    who = holder(session, lease.processes if session == lease.session else ())
    return f"{who} of the same job gave the group back. Acquire it again before touching the device."


def adopted(lease: Lease) -> str:
    """The store knew nothing of it."""
    return (
        f"{holder(lease.session, lease.processes)} says that it holds lease {lease.token}, of which no record was left;"
        " it goes on"
    )


def not_sharing(session: SessionId, lease: Lease) -> Refusal:
    """A Yield by a session that has no part in the lease."""
    return Refusal(
        RefusalCode.PERMISSION_DENIED,
        f"session {session!r} does not hold group {lease.group!r}: {holder(lease.session, lease.processes)} of the same"
        " job does; nothing was changed. Yield there; a Yield without session_id gives it back in the job's name.",
    )


def request_returned(request: RequestId, lease: Lease) -> Refusal:
    """The request got a share of a lease and its session gave that back."""
    return Refusal(
        RefusalCode.ABORTED,
        f"request {request!r} was granted a share of lease {lease.token} of group {lease.group!r}, which was given"
        " back. Acquire with a new request_id.",
    )
