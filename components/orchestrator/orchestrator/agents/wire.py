"""Protobuf messages of the snapshot agent as the core's words, and back. Messages stop here."""

from orchestrator.agents.calls import MAX_ERROR_CHARS
from orchestrator.agents.target import AgentTarget
from orchestrator.core.effects import KillContext, LockContext, StartRestore, StartSnapshot, UnlockContext
from orchestrator.core.events import (
    AcceleratorChanged,
    ContextChanged,
    ContextGone,
    Event,
    NodeObserved,
    OperationEnded,
)
from orchestrator.core.types import (
    AcceleratorId,
    AcceleratorView,
    ContextState,
    ContextView,
    DeviceUsage,
    Epoch,
    Fence,
    GroupId,
    JobId,
    NodeId,
    OperationId,
    OperationResult,
    ProcessRef,
    Token,
)
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

GONE_PREFIX = "gone: "
"""How an agent's error begins when the context's processes ended in the middle of an operation."""

_STATES = {
    pb.JOB_STATE_UNSPECIFIED: ContextState.TRANSITIONING,
    pb.JOB_STATE_IDLE: ContextState.IDLE,
    pb.JOB_STATE_RUNNING: ContextState.RUNNING,
    pb.JOB_STATE_TRANSITIONING: ContextState.TRANSITIONING,
    pb.JOB_STATE_SAVED: ContextState.SAVED,
    pb.JOB_STATE_FAULTED: ContextState.FAULTED,
}


def events(node: NodeId, message: pb.AgentEvent) -> list[Event]:
    """What one message of a Watch stream tells, in its order; kinds that this version does not know are left out."""
    told = (event(node, one) for one in message.together or (message,))
    return [one for one in told if one is not None]


def event(node: NodeId, message: pb.AgentEvent) -> Event | None:
    """One message of a Watch stream; None for a kind that this version does not know."""
    match message.WhichOneof("event"):
        case "snapshot":
            return observed(node, message.incarnation, message.snapshot)
        case "job":
            return ContextChanged(node, context(message.job))
        case "gone":
            return ContextGone(node, JobId(message.gone.job_id), GroupId(message.gone.group))
        case "operation":
            ended = message.operation
            return OperationEnded(node, OperationId(ended.operation_id), result(ended.result))
        case "accelerator":
            return AcceleratorChanged(node, accelerator(message.accelerator))
        case _:
            return None


def observed(node: NodeId, incarnation: str, status: pb.StatusResponse) -> NodeObserved:
    return NodeObserved(
        node=node,
        incarnation=incarnation,
        contexts=tuple(context(job) for job in status.job_statuses),
        accelerators=tuple(accelerator(one) for one in status.accelerator_statuses),
        fences=tuple(
            Fence(GroupId(f.group), Token(f.fencing_token), Epoch(f.leader_epoch)) for f in status.fences),
    )


def context(job: pb.JobStatus) -> ContextView:
    return ContextView(
        job=JobId(job.job_id),
        group=GroupId(job.group),
        state=_STATES.get(job.state, ContextState.TRANSITIONING),
        locked=job.locked,
        pids=frozenset(job.pids),
        in_pods=frozenset(ProcessRef(NodeId(p.pod), p.pid, p.start_time) for p in job.in_pods),
        device_bytes=job.device_bytes,
        host_bytes=job.host_bytes,
        usage=tuple(
            DeviceUsage(AcceleratorId(u.accelerator_id), u.device_bytes, u.saved_bytes) for u in job.usage),
        reason=job.reason,
        backend=job.backend,
        discarded_tags=tuple(job.discarded_tags),
    )


def accelerator(one: pb.AcceleratorStatus) -> AcceleratorView:
    return AcceleratorView(
        accelerator=AcceleratorId(one.id),
        used_bytes=one.memory_used_bytes,
        total_bytes=one.memory_total_bytes,
        groups=tuple(GroupId(group) for group in one.groups),
        unmanaged_pids=tuple(one.unmanaged_pids),
        utilization=one.utilization,
        name=one.name,
    )


def result(answer: pb.GetOperationResponse) -> OperationResult:
    """How an operation ended; `answer` is not PENDING."""
    return OperationResult(
        complete=answer.status == pb.OPERATION_STATUS_COMPLETE,
        rolled_back=answer.rolled_back,
        indeterminate=answer.indeterminate,
        gone=answer.error.startswith(GONE_PREFIX),
        error=answer.error[:MAX_ERROR_CHARS],
        device_bytes=answer.snapshot_device_bytes,
        host_bytes=answer.storage_bytes,
        elapsed_s=answer.elapsed_ms / 1000,
    )


def snapshot_request(effect: StartSnapshot, then: StartRestore | None = None) -> pb.SnapshotRequest:
    return pb.SnapshotRequest(
        job_id=effect.job, group=effect.group, operation_id=effect.operation, timeout_ms=_ms(effect.timeout_s),
        fencing_token=effect.token, leader_epoch=effect.epoch,
        then_restore=None if then is None else restore_request(then))


def restore_request(effect: StartRestore) -> pb.RestoreRequest:
    return pb.RestoreRequest(
        job_id=effect.job, group=effect.group, operation_id=effect.operation, timeout_ms=_ms(effect.timeout_s),
        fencing_token=effect.token, leader_epoch=effect.epoch, leave_locked=effect.leave_locked,
        after_operation_id=effect.after or "")


def lock_request(effect: LockContext) -> pb.LockRequest:
    return pb.LockRequest(
        context=pb.ContextRef(job_id=effect.job, group=effect.group), timeout_ms=_ms(effect.timeout_s),
        fencing_token=effect.token, leader_epoch=effect.epoch)


def unlock_request(effect: UnlockContext) -> pb.UnlockRequest:
    return pb.UnlockRequest(
        context=pb.ContextRef(job_id=effect.job, group=effect.group), fencing_token=effect.token,
        leader_epoch=effect.epoch)


def kill_request(effect: KillContext) -> pb.KillRequest:
    return pb.KillRequest(
        context=pb.ContextRef(job_id=effect.job, group=effect.group), fencing_token=effect.token,
        leader_epoch=effect.epoch, reason=effect.reason)


def observed_without_groups(
    target: AgentTarget, status: pb.StatusResponse, known: dict[JobId, GroupId], locked: set[tuple[JobId, GroupId]]
) -> NodeObserved:
    """The answer of an agent of the old contract, completed with what the configuration and our own calls say.

    Such an agent tells no groups: a job is in the group that we moved it for, else in the node's only group; a job of
    which neither is known is left out. Locks are ours alone (`locked`), for it has none. One that tells no accelerators
    has those that are configured, of which then nothing but the name is known.
    """
    contexts = []
    for job in status.job_statuses:
        group = known.get(JobId(job.job_id), target.groups[0][0] if len(target.groups) == 1 else None)
        if group is not None:
            is_locked = (JobId(job.job_id), group) in locked
            contexts.append(ContextView(
                JobId(job.job_id), group, _STATES.get(job.state, ContextState.TRANSITIONING), locked=is_locked))
    accelerators = tuple(
        AcceleratorView(AcceleratorId(a.id), a.memory_used_bytes, a.memory_total_bytes, _configured(target, a.id, n))
        for n, a in enumerate(status.accelerator_statuses))
    if not accelerators:
        accelerators = tuple(
            AcceleratorView(AcceleratorId(name), groups=(group,)) for group, named in target.groups for name in named)
    return NodeObserved(node=target.node, contexts=tuple(contexts), accelerators=accelerators)


def _configured(target: AgentTarget, accelerator_id: str, index: int) -> tuple[GroupId, ...]:
    if len(target.groups) == 1 and not target.groups[0][1]:
        return (target.groups[0][0],)
    return tuple(group for group, named in target.groups if accelerator_id in named or str(index) in named)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
