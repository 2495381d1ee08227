"""The client of a node's snapshot agent, for tools and tests: jobs speak to the orchestrator."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc
from timeslice._channel import open_channel, status_of
from timeslice._settings import check_address
from timeslice.snapshot_agent.types import (
    AcceleratorStatus,
    GetOperationResponse,
    JobStatus,
    RestoreResponse,
    SnapshotResponse,
    StatusResponse,
)

__all__ = ["SnapshotAgentClient", "SnapshotAgentError", "SnapshotAgentInterface"]

_ENDED = ("OPERATION_STATUS_COMPLETE", "OPERATION_STATUS_FAILED")


class SnapshotAgentError(Exception):
    """The agent refused, or does not answer. `code` is the grpc status, `details` its text; None if there was none."""

    def __init__(self, message: str, code: grpc.StatusCode | None = None, details: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class SnapshotAgentInterface(ABC):
    """What can be asked of an agent; a fake for tests implements the same."""

    @abstractmethod
    def snapshot(
        self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None
    ) -> SnapshotResponse:
        """Start to save the job's device memory to the host."""

    @abstractmethod
    def restore(self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None) -> RestoreResponse:
        """Start to copy the job's device memory back."""

    @abstractmethod
    def get_operation(self, operation_id: str) -> GetOperationResponse:
        """How far the operation is."""

    @abstractmethod
    def status(self) -> StatusResponse:
        """The node's jobs and accelerators."""


class SnapshotAgentClient(SnapshotAgentInterface):
    """Asks one agent. Every failure is a SnapshotAgentError. May be used from several threads."""

    def __init__(self, endpoint: str | None = None, channel: grpc.Channel | None = None) -> None:
        """
        Args:
            endpoint: "unix:PATH" or "HOST:PORT".
            channel: used instead of a channel of our own, and left open by `close`.
        Raises:
            ValueError: neither is given, or the endpoint is no address.
        """
        if channel is None and not endpoint:
            raise ValueError("SnapshotAgentClient needs an endpoint or a channel")
        self._own_channel = channel is None
        self.channel = channel if channel is not None else open_channel(check_address(endpoint or "", "endpoint"), [])
        self._endpoint = endpoint or "the given channel"
        self.stub: Any = pb2_grpc.SnapshotAgentServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> SnapshotAgentClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel, if it is the client's own."""
        if self._own_channel:
            self.channel.close()

    def snapshot(
        self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None
    ) -> SnapshotResponse:
        request = pb2.SnapshotRequest(job_id=job_id, group=group, backend_config=backend_config)
        return SnapshotResponse(self._call("Snapshot", request).operation_id)

    def restore(self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None) -> RestoreResponse:
        request = pb2.RestoreRequest(job_id=job_id, group=group, backend_config=backend_config)
        return RestoreResponse(self._call("Restore", request).operation_id)

    def get_operation(self, operation_id: str) -> GetOperationResponse:
        reply = self._call("GetOperation", pb2.GetOperationRequest(operation_id=operation_id))
        return GetOperationResponse(
            status=pb2.OperationStatus.Name(reply.status),
            elapsed_ms=reply.elapsed_ms,
            storage_bytes=reply.storage_bytes if reply.HasField("storage_bytes") else None,
            snapshot_device_bytes=reply.snapshot_device_bytes if reply.HasField("snapshot_device_bytes") else None,
            error=reply.error if reply.HasField("error") else None,
        )

    def status(self) -> StatusResponse:
        reply = self._call("Status", pb2.StatusRequest())
        return StatusResponse(
            [JobStatus(job.job_id, pb2.JobState.Name(job.state)) for job in reply.job_statuses],
            [
                AcceleratorStatus(acc.id, acc.memory_used_bytes, acc.memory_total_bytes)
                for acc in reply.accelerator_statuses
            ],
        )

    def wait_for_operation(self, operation_id: str, poll_interval_sec: float = 1.0) -> GetOperationResponse:
        """Ask until the operation has ended, well or badly: soon at first, then every `poll_interval_sec`."""
        pause_s = min(0.02, poll_interval_sec)
        while True:
            reply = self.get_operation(operation_id)
            if reply.status in _ENDED:
                return reply
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, poll_interval_sec)

    def snapshot_and_wait(
        self,
        job_id: str,
        group: str = "",
        poll_interval_sec: float = 1.0,
        backend_config: pb2.BackendConfig | None = None,
    ) -> GetOperationResponse:
        """Save the job's device memory, and wait for the end."""
        begun = self.snapshot(job_id, group, backend_config)
        return self.wait_for_operation(begun.operation_id, poll_interval_sec)

    def restore_and_wait(
        self,
        job_id: str,
        group: str = "",
        poll_interval_sec: float = 1.0,
        backend_config: pb2.BackendConfig | None = None,
    ) -> GetOperationResponse:
        """Copy the job's device memory back, and wait for the end."""
        begun = self.restore(job_id, group, backend_config)
        return self.wait_for_operation(begun.operation_id, poll_interval_sec)

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self.stub, method)(request)
        except grpc.RpcError as err:
            raise agent_error(err, f"{method} failed at the snapshot agent", self._endpoint) from err


def agent_error(error: Any, what: str, endpoint: str) -> SnapshotAgentError:
    """Our exception for a grpc.RpcError."""
    status = status_of(error)
    text = f"{what}: {status.code}: {status.details}"
    if status.code == "UNAVAILABLE":
        text = (
            f"no snapshot agent answers at {endpoint} ({status.details}); start one with `timeslice up`, or name its"
            " address in TIMESLICE_AGENT_ADDR"
        )
    return SnapshotAgentError(text, code=error.code(), details=status.details)
