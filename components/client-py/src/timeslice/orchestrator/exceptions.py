"""The errors of the orchestrator's client. The one table from a gRPC status to an exception is here."""

from __future__ import annotations

from typing import Any

from timeslice._core.calls import Status

__all__ = [
    "OrchestratorConnectionError",
    "OrchestratorError",
    "OrchestratorInternalError",
    "OrchestratorInvalidArgumentError",
    "OrchestratorLeaseLostError",
    "OrchestratorTimeoutError",
    "wrap_grpc_error",
]


class OrchestratorError(Exception):
    """A call to the orchestrator failed. `code` is the gRPC status by name ("NOT_FOUND"), None if there was none."""

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        self.code = code


class OrchestratorConnectionError(OrchestratorError):
    """No orchestrator answers at that address."""


class OrchestratorTimeoutError(OrchestratorError):
    """The call did not end within its `timeout_sec`. A job that waited has left the queue."""


class OrchestratorInvalidArgumentError(OrchestratorError):
    """The orchestrator refused an argument; the text names it."""


class OrchestratorInternalError(OrchestratorError):
    """The orchestrator failed on its own side."""


class OrchestratorLeaseLostError(OrchestratorError):
    """The job's lease ended without the job giving it back; somebody else may have used the accelerators since.

    Nothing is held any more: acquire the group again before touching the device.
    """

    def __init__(self, job_id: str, group_id: str, fencing_token: int, reason: str, code: str | None = None) -> None:
        super().__init__(
            f"lease {fencing_token} of job {job_id!r} on group {group_id!r} was lost: {reason}."
            " Acquire the group again before touching the device.",
            code=code,
        )
        self.job_id, self.group_id, self.fencing_token, self.reason = job_id, group_id, fencing_token, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job_id, self.group_id, self.fencing_token, self.reason, self.code)


_CLASSES: dict[str, type[OrchestratorError]] = {
    "UNAVAILABLE": OrchestratorConnectionError,
    "DEADLINE_EXCEEDED": OrchestratorTimeoutError,
    "INVALID_ARGUMENT": OrchestratorInvalidArgumentError,
    "INTERNAL": OrchestratorInternalError,
    "UNKNOWN": OrchestratorInternalError,
}


def error_from_status(status: Status, target: str) -> OrchestratorError:
    """The exception for how a call to the orchestrator at `target` ended."""
    text = status.details or f"the orchestrator answered {status.code}"
    if status.code == "UNAVAILABLE":
        text = (
            f"no orchestrator answers at {target} ({status.details}); start one with `timeslice up`, or name its"
            " address in TIMESLICE_ORCH_ADDR or the argument target"
        )
    return _CLASSES.get(status.code, OrchestratorError)(text, code=status.code)


def wrap_grpc_error(error: Any) -> OrchestratorError:
    """The exception for a `grpc.RpcError` that a stub raised."""
    code = error.code().name
    text = f"the orchestrator answered {code}: {error.details()}"
    return _CLASSES.get(code, OrchestratorError)(text, code=code)
