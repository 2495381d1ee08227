"""What can be asked of a snapshot agent: each question as its request, and how its reply is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grpc_health.v1 import health_pb2

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice.snapshot_agent.types import (
    AcceleratorStatus,
    GetOperationResponse,
    HealthResponse,
    JobStatus,
    RestoreResponse,
    SnapshotResponse,
    StatusResponse,
)

T = TypeVar("T")

CLOSED = "this client was closed; make a new SnapshotAgentClient"
_ENDED = ("OPERATION_STATUS_COMPLETE", "OPERATION_STATUS_FAILED")


@dataclass(frozen=True)
class Question(Generic[T]):
    """One call."""

    method: str
    """Of the agent's own service, except "Check", which is the standard health service's."""
    request: Any
    read: Callable[[Any], T]


def snapshot(job_id: str, group: str, backend_config: pb2.BackendConfig | None) -> Question[SnapshotResponse]:
    request = pb2.SnapshotRequest(job_id=job_id, group=group, backend_config=backend_config)
    return Question("Snapshot", request, lambda reply: SnapshotResponse(reply.operation_id))


def restore(job_id: str, group: str, backend_config: pb2.BackendConfig | None) -> Question[RestoreResponse]:
    request = pb2.RestoreRequest(job_id=job_id, group=group, backend_config=backend_config)
    return Question("Restore", request, lambda reply: RestoreResponse(reply.operation_id))


def operation(operation_id: str) -> Question[GetOperationResponse]:
    def read(reply: pb2.GetOperationResponse) -> GetOperationResponse:
        return GetOperationResponse(
            status=pb2.OperationStatus.Name(reply.status),
            elapsed_ms=reply.elapsed_ms,
            storage_bytes=reply.storage_bytes if reply.HasField("storage_bytes") else None,
            snapshot_device_bytes=reply.snapshot_device_bytes if reply.HasField("snapshot_device_bytes") else None,
            error=reply.error if reply.HasField("error") else None,
        )

    return Question("GetOperation", pb2.GetOperationRequest(operation_id=operation_id), read)


def status() -> Question[StatusResponse]:
    def read(reply: pb2.StatusResponse) -> StatusResponse:
        return StatusResponse(
            [JobStatus(job.job_id, pb2.JobState.Name(job.state)) for job in reply.job_statuses],
            [
                AcceleratorStatus(acc.id, acc.memory_used_bytes, acc.memory_total_bytes)
                for acc in reply.accelerator_statuses
            ],
        )

    return Question("Status", pb2.StatusRequest(), read)


def health(service: str) -> Question[HealthResponse]:
    def read(reply: Any) -> HealthResponse:
        return HealthResponse(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

    return Question("Check", health_pb2.HealthCheckRequest(service=service), read)


def has_ended(reply: GetOperationResponse) -> bool:
    """True if the operation is over, well or badly."""
    return reply.status in _ENDED


def pauses(poll_interval_s: float) -> Iterator[float]:
    """Seconds between two looks at an operation: short at first, then `poll_interval_s`."""
    pause_s = min(0.02, poll_interval_s)
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, poll_interval_s)
