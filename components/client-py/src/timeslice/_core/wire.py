"""Between the wire's messages and what the client works with. Protobuf stops here."""

from __future__ import annotations

from collections.abc import Iterable

from timeslice._core.calls import Send
from timeslice._core.leases import HeldLease, Holding
from timeslice._processes import ProcessId
from timeslice.orchestrator.types import (
    AcquireResult,
    AgentJobState,
    GroupLockState,
    GroupStatus,
    OrchestratorGroupStatus,
    RevokeNotice,
    SharedLease,
    SnapshotAgentJobState,
    YieldResult,
)
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2


def acquire_request(holding: Holding, send: Send, session_id: str) -> pb2.AcquireRequest:
    return pb2.AcquireRequest(
        job_id=holding.job_id,
        group_id=holding.group_id,
        request_id=send.request_id,
        wait_ms=send.wait_ms,
        session_id=session_id,
    )


def acquire_result(reply: pb2.AcquireResponse) -> AcquireResult:
    result = AcquireResult(reply.success, reply.waited_ms, reply.context_restored)
    object.__setattr__(result, "_discarded_tags", tuple(reply.discarded_tags))  # the class is frozen
    return result


def is_queued(reply: object) -> bool:
    """True if the request waits on and should be repeated."""
    return isinstance(reply, pb2.AcquireResponse) and reply.queued and not reply.success


def granted_token(reply: pb2.AcquireResponse, group_id: str) -> int:
    """The fencing token of the group's lease; 0 from a server without tokens."""
    return next((lease.fencing_token for lease in reply.leases if lease.group_id == group_id), 0)


def yield_request(holding: Holding, token: int, session_id: str) -> pb2.YieldRequest:
    return pb2.YieldRequest(
        job_id=holding.job_id, group_id=holding.group_id, fencing_token=token, session_id=session_id
    )


def yield_result(reply: pb2.YieldResponse) -> YieldResult:
    return YieldResult(reply.success, reply.pending_waiters, reply.snapshot_deferred)


def session_request(
    session_id: str, job_id: str, ttl_s: float, processes: Iterable[ProcessId], claims: Iterable[HeldLease]
) -> pb2.SessionRequest:
    return pb2.SessionRequest(
        session_id=session_id,
        job_id=job_id,
        ttl_ms=int(ttl_s * 1000),
        processes=[pb2.ProcessRef(node=p.node, pid=p.pid, start_time=p.start_time) for p in processes],
        held=[pb2.HeldLease(group_id=lease.holding.group_id, fencing_token=lease.token) for lease in claims],
    )


def held_lease(lease: pb2.Lease) -> HeldLease:
    return HeldLease(Holding(lease.job_id, lease.group_id), lease.fencing_token)


def revoke_notice(notice: pb2.RevokeNotice) -> RevokeNotice:
    return RevokeNotice(notice.lease.group_id, notice.lease.job_id, notice.grace_ms / 1000, notice.reason)


def shared_lease(notice: pb2.LeaseShared, session_id: str) -> SharedLease:
    """The notice as the session of this id sees it."""
    lease = notice.lease
    return SharedLease(
        group_id=lease.group_id,
        job_id=lease.job_id,
        fencing_token=lease.fencing_token,
        attached=lease.attached,
        is_owner=lease.owner_session_id == session_id,
        other=notice.other,
    )


def group_status(reply: pb2.GetGroupStatusResponse) -> OrchestratorGroupStatus:
    group = reply.group
    return OrchestratorGroupStatus(
        GroupStatus(
            group_id=group.group_id,
            group_state=group_state(group.group_state),
            state_timestamp=group.state_timestamp.ToDatetime() if group.HasField("state_timestamp") else None,
            locking_job=group.locking_job,
            active_job=group.active_job,
            waiter_queue_depth=group.waiter_queue_depth,
            loaded_job=group.loaded_job,
        ),
        [
            SnapshotAgentJobState(state.agent, state.job_id, agent_job_state(state.job_state))
            for state in reply.agent_job_states
        ],
    )


def group_state(number: int) -> GroupLockState:
    """UNSPECIFIED for a state that a newer server may have."""
    try:
        return GroupLockState[pb2.GroupStatus.State.Name(number).removeprefix("STATE_")]
    except (KeyError, ValueError):
        return GroupLockState.UNSPECIFIED


def agent_job_state(number: int) -> AgentJobState:
    """UNSPECIFIED for a state that a newer server may have."""
    try:
        return AgentJobState[pb2.SnapshotAgentJobState.State.Name(number).removeprefix("STATE_")]
    except (KeyError, ValueError):
        return AgentJobState.UNSPECIFIED
