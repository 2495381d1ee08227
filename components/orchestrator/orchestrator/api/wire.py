"""The orchestrator's protobuf messages as the core's words, and back. Messages stop here."""

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator.core.effects import (
    AnswerSession,
    NotifyLeaseLost,
    NotifyLeaseShared,
    Publish,
    ReplyAcquired,
    ReplyEvicted,
    ReplyYielded,
)
from orchestrator.core.events import AcquireRequested, EvictRequested, SessionRenewed, YieldRequested
from orchestrator.core.types import (
    CallId,
    ContextState,
    EvictAction,
    GroupId,
    GroupState,
    GroupView,
    JobId,
    Lease,
    NodeContextView,
    NodeId,
    ProcessRef,
    RequestId,
    SessionId,
    Token,
)
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

_GROUP_STATES = {
    GroupState.UNKNOWN: pb.GroupStatus.STATE_UNKNOWN,
    GroupState.IDLE: pb.GroupStatus.STATE_IDLE,
    GroupState.IDLE_YIELDED: pb.GroupStatus.STATE_IDLE_YIELDED,
    GroupState.LOCKED: pb.GroupStatus.STATE_LOCKED,
    GroupState.SWITCHING: pb.GroupStatus.STATE_SWITCHING,
}

_CONTEXT_STATES = {
    ContextState.IDLE: pb.SnapshotAgentJobState.STATE_IDLE,
    ContextState.RUNNING: pb.SnapshotAgentJobState.STATE_RUNNING,
    ContextState.TRANSITIONING: pb.SnapshotAgentJobState.STATE_TRANSITIONING,
    ContextState.SAVED: pb.SnapshotAgentJobState.STATE_SAVED,
    ContextState.FAULTED: pb.SnapshotAgentJobState.STATE_FAULTED,
}

_EVICT_ACTIONS = {
    pb.EvictRequest.ACTION_END_LEASE: EvictAction.END_LEASE,
    pb.EvictRequest.ACTION_DROP_WAITER: EvictAction.DROP_WAITER,
    pb.EvictRequest.ACTION_CLEAR_FAULT: EvictAction.CLEAR_FAULT,
    pb.EvictRequest.ACTION_KILL: EvictAction.KILL,
    pb.EvictRequest.ACTION_FORGET_NODE: EvictAction.FORGET_NODE,
}


@dataclass(frozen=True, slots=True)
class Clock:
    """The monotonic clock that all decisions use, and the wall clock that people read."""

    now: Callable[[], float]
    wall: Callable[[], float]

    def timestamp(self, at_s: float | None = None) -> Timestamp:
        """A moment on the monotonic clock (None: now) as wall time."""
        return _timestamp(self.wall() + (0.0 if at_s is None else at_s - self.now()))


def _timestamp(wall_s: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(wall_s * 1e9))
    return stamp


# Requests.


def acquire(request: pb.AcquireRequest, call: CallId) -> AcquireRequested:
    return AcquireRequested(
        call=call,
        group=GroupId(request.group_id),
        job=JobId(request.job_id),
        request=RequestId(request.request_id) if request.request_id else None,
        session=SessionId(request.session_id) if request.session_id else None,
        wait_s=request.wait_ms / 1000 if request.wait_ms else None,
        priority=request.priority,
        expected_hold_s=request.expected_hold_ms / 1000,
        owner=request.owner,
    )


def yielded(request: pb.YieldRequest, call: CallId) -> YieldRequested:
    return YieldRequested(
        call=call,
        group=GroupId(request.group_id),
        job=JobId(request.job_id),
        token=Token(request.fencing_token),
        session=SessionId(request.session_id) if request.session_id else None,
        expected_idle_s=request.expected_idle_ms / 1000,
        final=request.final,
    )


def session(request: pb.SessionRequest, stream: CallId) -> SessionRenewed:
    return SessionRenewed(
        stream=stream,
        session=SessionId(request.session_id),
        job=JobId(request.job_id),
        ttl_s=request.ttl_ms / 1000,
        processes=tuple(ProcessRef(NodeId(p.node), p.pid, p.start_time) for p in request.processes),
        claims=tuple((GroupId(held.group_id), Token(held.fencing_token)) for held in request.held),
    )


def evict(request: pb.EvictRequest, call: CallId) -> EvictRequested | None:
    """None: the request names no action that this version knows."""
    action = _EVICT_ACTIONS.get(request.action)
    if action is None:
        return None
    return EvictRequested(
        call=call,
        group=GroupId(request.group_id),
        action=action,
        job=JobId(request.job_id) if request.job_id else None,
        reason=request.reason,
        request=RequestId(request.request_id) if request.request_id else None,
        node=NodeId(request.node) if request.node else None,
    )


# Answers.


def acquired(reply: ReplyAcquired, granted_at: Timestamp, clock: Clock) -> pb.AcquireResponse:
    return pb.AcquireResponse(
        success=True,
        waited_ms=round(reply.waited_s * 1000),
        context_restored=reply.context_restored,
        leases=[lease(reply.lease, granted_at, clock)],
        discarded_tags=reply.discarded_tags,
    )


def yield_answer(reply: ReplyYielded) -> pb.YieldResponse:
    return pb.YieldResponse(
        success=True, pending_waiters=reply.pending_waiters, snapshot_deferred=reply.snapshot_deferred)


def evicted(reply: ReplyEvicted) -> pb.EvictResponse:
    return pb.EvictResponse(actions=reply.actions)


def session_opened(answer: AnswerSession, granted_at: Callable[[Lease], Timestamp], clock: Clock) -> pb.SessionNotice:
    leases = [lease(one, granted_at(one), clock) for one in answer.leases]
    return pb.SessionNotice(opened=pb.SessionOpened(ttl_ms=round(answer.ttl_s * 1000), leases=leases))


def lease_lost(notice: NotifyLeaseLost, granted_at: Timestamp, clock: Clock) -> pb.SessionNotice:
    return pb.SessionNotice(lost=pb.LeaseLost(
        lease=lease(notice.lease, granted_at, clock), reason=notice.reason, will_resume=notice.will_resume))


def lease_shared(notice: NotifyLeaseShared, granted_at: Timestamp, clock: Clock) -> pb.SessionNotice:
    return pb.SessionNotice(shared=pb.LeaseShared(lease=lease(notice.lease, granted_at, clock), other=notice.other))


def lease(held: Lease, granted_at: Timestamp, clock: Clock) -> pb.Lease:
    return pb.Lease(
        group_id=held.group,
        job_id=held.job,
        fencing_token=held.token,
        granted_at=granted_at,
        expires_at=clock.timestamp(clock.now() + held.ttl_s),
        ttl_ms=round(held.ttl_s * 1000),
        owner_session_id=held.session or "",
        attached=len(held.holders),
        accelerators=held.accelerators,
    )


def group_status(view: GroupView, clock: Clock) -> pb.GroupStatus:
    holder = view.lease.job if view.lease is not None else None
    return pb.GroupStatus(
        group_id=view.group,
        group_state=_GROUP_STATES[view.state],
        state_timestamp=clock.timestamp(view.state_since_s),
        locking_job=holder or view.next_job or "",
        active_job=holder if holder is not None and view.state is GroupState.LOCKED else "",
        waiter_queue_depth=len(view.waiters),
        loaded_job=view.loaded_job or "",
        waiters=[
            pb.Waiter(job_id=w.job, waited_ms=round(w.waited_s * 1000), priority=w.priority, request_id=w.request)
            for w in view.waiters],
        lease=None if view.lease is None else lease(view.lease, clock.timestamp(view.granted_at_s), clock),
        resident_jobs=view.resident_jobs,
        held_share=view.held_share,
        handoffs_total=view.handoffs_total,
        conditions=[
            pb.Condition(type=c.kind.value, reason=c.reason, since=clock.timestamp(c.since_s), jobs=c.jobs,
                         advice=c.advice)
            for c in view.conditions],
        accelerators=view.accelerators,
    )


def agent_job_state(seen: NodeContextView) -> pb.SnapshotAgentJobState:
    context = seen.context
    return pb.SnapshotAgentJobState(
        agent=seen.node,
        job_state=_CONTEXT_STATES[context.state],
        job_id=context.job,
        reason=context.reason,
        device_bytes=context.device_bytes,
        host_bytes=context.host_bytes,
    )


def group_event(published: Publish, sequence: int, wall_s: float) -> pb.GroupEvent:
    """An event of the log, without the group's status; `wall_s`: when it happened, for people."""
    return pb.GroupEvent(
        time=_timestamp(wall_s),
        group=pb.GroupStatus(group_id=published.group),
        kind=published.kind,
        job_id=published.job or "",
        node=published.node or "",
        duration_ms=round((published.duration_s or 0.0) * 1000),
        detail=published.detail,
        sequence=sequence,
    )
