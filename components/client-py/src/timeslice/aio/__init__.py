"""The clients for asyncio: the same names, arguments, results and errors as without, and calls that are awaited.

    from timeslice.aio import TimeSliceOrchestratorClient

    async with TimeSliceOrchestratorClient(job_id="my-run", group_id="trainers") as client:
        async with client.on_accelerators():
            ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeslice.aio._orchestrator import TimeSliceOrchestratorClient
    from timeslice.aio._snapshot_agent import SnapshotAgentClient

__all__ = ["SnapshotAgentClient", "TimeSliceOrchestratorClient"]

_HOMES = {
    "SnapshotAgentClient": "timeslice.aio._snapshot_agent",
    "TimeSliceOrchestratorClient": "timeslice.aio._orchestrator",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
