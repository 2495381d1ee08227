"""What the orchestrator's client returns, and what its callbacks are given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class GroupLockState(str, Enum):
    """What a group is doing now."""

    UNSPECIFIED = "UNSPECIFIED"
    UNKNOWN = "UNKNOWN"
    """The state cannot be told, for example because a node's agent does not answer."""
    IDLE = "IDLE"
    """No lease, and no job's context on the device."""
    IDLE_YIELDED = "IDLE_YIELDED"
    """No lease; the last holder's context is still on the device."""
    LOCKED = "LOCKED"
    """A job holds the lease and its context is on the device."""
    SWITCHING = "SWITCHING"
    """Contexts are being saved or restored."""


class AgentJobState(str, Enum):
    """What a job's context on one node is doing now."""

    UNSPECIFIED = "UNSPECIFIED"
    IDLE = "IDLE"
    RUNNING = "RUNNING"
    TRANSITIONING = "TRANSITIONING"
    SAVED = "SAVED"
    FAULTED = "FAULTED"


@dataclass(frozen=True)
class AcquireResult:
    """How an `acquire` ended."""

    success: bool
    waited_ms: int
    """From the request's arrival at the orchestrator to the grant."""
    context_restored: bool
    """True if the job's device memory was copied back for this grant."""

    @property
    def discarded_tags(self) -> tuple[str, ...]:
        """What was dropped when the job was saved, for it to fill again: ("weights", "kv_cache"), or ("*",) for all.

        Told with the first grant after it; empty if everything was kept. No field, so that results are made and
        compared as they always were.
        """
        found: tuple[str, ...] = getattr(self, "_discarded_tags", ())
        return found


@dataclass(frozen=True)
class YieldResult:
    """How a `release` ended."""

    success: bool
    pending_waiters: int
    snapshot_deferred: bool
    """True if nobody waited, so the job's memory stays on the device."""


@dataclass(frozen=True)
class SnapshotAgentJobState:
    """A job's context on one node, as its agent reports it."""

    agent: str
    job_id: str
    job_state: AgentJobState


@dataclass(frozen=True)
class GroupStatus:
    """One group. Job ids are empty where there is no such job."""

    group_id: str
    group_state: GroupLockState
    state_timestamp: datetime | None
    """When the state began, in UTC without a time zone; None if the orchestrator does not say."""
    locking_job: str
    active_job: str
    waiter_queue_depth: int
    loaded_job: str


@dataclass(frozen=True)
class OrchestratorGroupStatus:
    """One group and its jobs' contexts on the nodes."""

    group: GroupStatus
    agent_job_states: list[SnapshotAgentJobState]


@dataclass(frozen=True)
class RevokeNotice:
    """Somebody else has a claim on the group: give it back at the next safe point."""

    group_id: str
    job_id: str
    grace_s: float
    """Afterwards the job is taken off the device without its help."""
    reason: str


@dataclass(frozen=True)
class LostLease:
    """A lease ended without the job giving it back."""

    group_id: str
    job_id: str
    fencing_token: int
    reason: str
    will_resume: bool
    """True if the job is only frozen: it waits for its next turn by itself, and goes on where it stood."""


@dataclass(frozen=True)
class SharedLease:
    """Another process of the same job has come to a lease that this one holds, or has left it."""

    group_id: str
    job_id: str
    fencing_token: int
    attached: int
    """Processes that hold the lease now, this one among them."""
    is_owner: bool
    """True if the group goes to the next job when this process gives it back, whatever the others do."""
    other: str
    """Which process, in words for people."""
