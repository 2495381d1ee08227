"""Co-operative time-slicing of accelerators: take a group of accelerators for a phase, give it back at its end.

    from timeslice import TimeSliceOrchestratorClient

    client = TimeSliceOrchestratorClient(job_id="my-run", group_id="trainers")

    @client.on_accelerators()
    def train_phase(batch): ...

Nothing heavy is imported before a name is used, so `import timeslice` costs next to nothing.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if "grpc" not in sys.modules:
    # grpc looks at it when it is imported, which every use of this package does: without it, a forked child may crash.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

if TYPE_CHECKING:
    from timeslice.orchestrator.client import TimeSliceOrchestratorClient
    from timeslice.snapshot_agent.client import SnapshotAgentClient

__all__ = ["SnapshotAgentClient", "TimeSliceOrchestratorClient"]

_HOMES = {
    "SnapshotAgentClient": "timeslice.snapshot_agent.client",
    "TimeSliceOrchestratorClient": "timeslice.orchestrator.client",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
