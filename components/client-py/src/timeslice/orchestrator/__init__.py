"""The client of the orchestrator: `client`, its results in `types`, its errors in `exceptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeslice.orchestrator.client import TimeSliceOrchestratorClient

__all__ = ["TimeSliceOrchestratorClient"]


def __getattr__(name: str) -> Any:
    if name == "TimeSliceOrchestratorClient":
        from timeslice.orchestrator.client import TimeSliceOrchestratorClient

        return TimeSliceOrchestratorClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
