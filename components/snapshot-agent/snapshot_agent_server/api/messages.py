"""Our own types to messages that go out."""

from __future__ import annotations

from collections.abc import Iterable

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.core.contexts import ContextState, ContextView
from snapshot_agent_server.core.fences import Fences
from snapshot_agent_server.core.ids import ContextKey, GroupId
from snapshot_agent_server.core.modes import Mode
from snapshot_agent_server.core.operations import Kind, Operation, Result, Status
from snapshot_agent_server.core.samples import AcceleratorView
from snapshot_agent_server.core.workloads import Command

STATE_OF = {
    ContextState.IDLE: pb.JOB_STATE_IDLE,
    ContextState.RUNNING: pb.JOB_STATE_RUNNING,
    ContextState.TRANSITIONING: pb.JOB_STATE_TRANSITIONING,
    ContextState.SAVED: pb.JOB_STATE_SAVED,
    ContextState.FAULTED: pb.JOB_STATE_FAULTED,
}
PRECEDENCE = (
    ContextState.FAULTED,
    ContextState.TRANSITIONING,
    ContextState.SAVED,
    ContextState.RUNNING,
    ContextState.IDLE,
)
"""A job with several contexts shows the first of these that occurs."""

MODE_OF = {Mode.OFFLOAD: pb.SUSPEND_MODE_OFFLOAD, Mode.DISCARD: pb.SUSPEND_MODE_DISCARD}

STATUS_OF = {
    Status.PENDING: pb.OPERATION_STATUS_PENDING,
    Status.COMPLETE: pb.OPERATION_STATUS_COMPLETE,
    Status.FAILED: pb.OPERATION_STATUS_FAILED,
}


def job_status(view: ContextView) -> pb.JobStatus:
    return pb.JobStatus(
        job_id=view.key.job,
        state=STATE_OF[view.state],
        reason=view.reason,
        pids=view.pids,
        device_bytes=view.device_bytes,
        host_bytes=view.host_bytes,
        accelerator_ids=[usage.accelerator for usage in view.usage],
        group=view.key.group,
        locked=view.locked,
        usage=[
            pb.DeviceUsage(accelerator_id=u.accelerator, device_bytes=u.device_bytes, saved_bytes=u.saved_bytes)
            for u in view.usage
        ],
        backend=view.backend,
        discarded_tags=view.discarded,
        in_pods=_pod_processes(view),
    )


def merged_job_status(views: list[ContextView]) -> pb.JobStatus:
    """One status for all contexts of a job, for peers that know no groups."""
    first = min(views, key=lambda view: PRECEDENCE.index(view.state))
    usage: dict[str, pb.DeviceUsage] = {}
    for view in views:
        for one in view.usage:
            total = usage.setdefault(one.accelerator, pb.DeviceUsage(accelerator_id=one.accelerator))
            total.device_bytes += one.device_bytes
            total.saved_bytes += one.saved_bytes
    return pb.JobStatus(
        job_id=first.key.job,
        state=STATE_OF[first.state],
        reason=first.reason,
        pids=sorted(pid for view in views for pid in view.pids),
        device_bytes=sum(view.device_bytes for view in views),
        host_bytes=sum(view.host_bytes for view in views),
        accelerator_ids=sorted(usage),
        group=first.key.group if len(views) == 1 else "",
        locked=all(view.locked for view in views),
        usage=[usage[accelerator] for accelerator in sorted(usage)],
        backend=first.backend if len({view.backend for view in views}) == 1 else "",
        discarded_tags=dict.fromkeys(tag for view in views for tag in view.discarded),
        in_pods=[found for view in views for found in _pod_processes(view)],
    )


def _pod_processes(view: ContextView) -> list[pb.PodProcess]:
    return [pb.PodProcess(pod=found.pod, pid=found.pid, start_time=found.start_time) for found in view.in_pods]


def accelerator_status(view: AcceleratorView) -> pb.AcceleratorStatus:
    return pb.AcceleratorStatus(
        id=view.accelerator,
        memory_used_bytes=view.used,
        memory_total_bytes=view.total,
        utilization=view.utilization,
        name=view.name,
        groups=view.groups,
        unmanaged_pids=view.unmanaged_pids,
    )


def status_response(
    views: Iterable[ContextView],
    accelerators: Iterable[AcceleratorView],
    fences: Fences,
    groups: Iterable[GroupId],
    per_context: bool,
) -> pb.StatusResponse:
    views = list(views)
    if per_context:
        jobs = [job_status(view) for view in views]
    else:
        by_job: dict[str, list[ContextView]] = {}
        for view in views:
            by_job.setdefault(view.key.job, []).append(view)
        jobs = [merged_job_status(of_job) for of_job in by_job.values()]
    return pb.StatusResponse(
        job_statuses=jobs,
        accelerator_statuses=[accelerator_status(view) for view in accelerators],
        fences=[
            pb.Fence(group=group, fencing_token=fences.tokens.get(group, 0), leader_epoch=fences.epoch)
            for group in dict.fromkeys([*groups, *fences.tokens])
        ],
    )


def operation_response(operation: Operation, now: float) -> pb.GetOperationResponse:
    if operation.result is None:
        elapsed = round((now - operation.accepted_at) * 1000)
        return pb.GetOperationResponse(
            status=pb.OPERATION_STATUS_PENDING, elapsed_ms=elapsed, step_us=operation.step_us
        )
    return result_message(operation.kind, operation.result)


def result_message(kind: Kind, result: Result) -> pb.GetOperationResponse:
    message = pb.GetOperationResponse(
        status=STATUS_OF[result.status],
        elapsed_ms=result.elapsed_ms,
        rolled_back=result.is_rolled_back,
        indeterminate=result.is_indeterminate,
        step_us=result.step_us,
        discarded_tags=result.discarded,
    )
    if result.status is Status.COMPLETE:
        message.snapshot_device_bytes = result.device_bytes
        message.storage_bytes = result.device_bytes if kind is Kind.SNAPSHOT else 0
    if result.error:
        message.error = result.error
    return message


def command_message(command: Command) -> pb.AgentCommand:
    if command.kind is Kind.RESTORE:
        return pb.AgentCommand(command_id=command.id, restore=pb.RestoreCommand(tags=command.tags))
    snapshot = pb.SnapshotCommand(mode=MODE_OF[command.mode], tags=command.tags)
    return pb.AgentCommand(command_id=command.id, snapshot=snapshot)


def context_ref(key: ContextKey) -> pb.ContextRef:
    return pb.ContextRef(job_id=key.job, group=key.group)
