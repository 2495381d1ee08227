"""The client of the orchestrator: `client`, its results in `types`, its errors in `exceptions`.

Their names can be had from here too; nothing heavy is imported before one is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeslice.orchestrator.client import TimeSliceOrchestratorClient
    from timeslice.orchestrator.exceptions import (
        OrchestratorConnectionError,
        OrchestratorError,
        OrchestratorInternalError,
        OrchestratorInvalidArgumentError,
        OrchestratorTimeoutError,
    )
    from timeslice.orchestrator.types import (
        AcquireResult,
        AgentJobState,
        GroupLockState,
        GroupStatus,
        OrchestratorGroupStatus,
        SnapshotAgentJobState,
        YieldResult,
    )

__all__ = [
    "AcquireResult",
    "AgentJobState",
    "GroupLockState",
    "GroupStatus",
    "OrchestratorConnectionError",
    "OrchestratorError",
    "OrchestratorGroupStatus",
    "OrchestratorInternalError",
    "OrchestratorInvalidArgumentError",
    "OrchestratorTimeoutError",
    "SnapshotAgentJobState",
    "TimeSliceOrchestratorClient",
    "YieldResult",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "client" if name.endswith("Client") else "exceptions" if name.endswith("Error") else "types"
    return getattr(import_module(f"{__name__}.{home}"), name)
