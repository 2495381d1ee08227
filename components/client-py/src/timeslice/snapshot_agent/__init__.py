"""The node's snapshot agent: registering a job's processes with it (`workload`), and asking it directly (`client`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeslice.snapshot_agent.client import SnapshotAgentClient
    from timeslice.snapshot_agent.workload import WorkloadHandle, register_workload

__all__ = ["SnapshotAgentClient", "WorkloadHandle", "register_workload"]

_HOMES = {
    "SnapshotAgentClient": "timeslice.snapshot_agent.client",
    "WorkloadHandle": "timeslice.snapshot_agent.workload",
    "register_workload": "timeslice.snapshot_agent.workload",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
