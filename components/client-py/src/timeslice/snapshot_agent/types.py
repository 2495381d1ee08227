"""What the agent's client returns. States and statuses are the enum names of snapshot_agent.proto."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SnapshotResponse:
    """A snapshot has begun."""

    operation_id: str


@dataclass(frozen=True)
class RestoreResponse:
    """A restore has begun."""

    operation_id: str


@dataclass(frozen=True)
class HealthResponse:
    """Whether the agent serves."""

    status: str


@dataclass(frozen=True)
class GetOperationResponse:
    """How far an operation is. What the agent did not say is None."""

    status: str
    elapsed_ms: int
    storage_bytes: int | None = None
    """Host memory that the saved context takes."""
    snapshot_device_bytes: int | None = None
    """Device memory that was saved or restored."""
    error: str | None = None


@dataclass(frozen=True)
class JobStatus:
    """A job on this node, merged over its contexts."""

    job_id: str
    state: str


@dataclass(frozen=True)
class AcceleratorStatus:
    """One accelerator of the node."""

    id: str
    memory_used_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True)
class StatusResponse:
    """Everything on the node."""

    job_statuses: list[JobStatus]
    accelerator_statuses: list[AcceleratorStatus]
