"""The names of things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

JobId = NewType("JobId", str)
GroupId = NewType("GroupId", str)
OperationId = NewType("OperationId", str)
ConnectionId = NewType("ConnectionId", int)
"""One WorkloadChannel stream; numbered by this agent process, never used again in it."""
CommandId = NewType("CommandId", str)
AcceleratorId = NewType("AcceleratorId", str)
"""The NVML UUID, "GPU-..."."""
PodUid = NewType("PodUid", str)


@dataclass(frozen=True, slots=True, order=True)
class ContextKey:
    """A job's state for one group on this node."""

    job: JobId
    group: GroupId

    def __str__(self) -> str:
        return f"{self.job}@{self.group}"


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process, and not another one that got the same pid later."""

    pid: int
    start_time: int
    """Clock ticks since boot, field 22 of /proc/PID/stat."""
