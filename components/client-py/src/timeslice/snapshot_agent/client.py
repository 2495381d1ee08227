"""The client of a node's snapshot agent, for tools and tests: jobs speak to the orchestrator."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2_grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc
from timeslice._channel import open_channel, status_of
from timeslice._core import agent
from timeslice._core.agent import Question
from timeslice._forks import GrpcUnusableError
from timeslice._settings import check_address
from timeslice.snapshot_agent.types import (
    GetOperationResponse,
    HealthResponse,
    RestoreResponse,
    SnapshotResponse,
    StatusResponse,
)

__all__ = ["SnapshotAgentClient", "SnapshotAgentError", "SnapshotAgentInterface"]

T = TypeVar("T")


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

    @abstractmethod
    def check_health(self, service: str = "") -> HealthResponse:
        """Whether the agent serves."""


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
        self._closed = False
        self._endpoint = endpoint or "the given channel"
        self._connect(channel)

    def __enter__(self) -> SnapshotAgentClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way, and close the channel if it is the client's own. A second call does nothing."""
        self._closed = True
        if self._own_channel:
            self.channel.close()

    def snapshot(
        self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None
    ) -> SnapshotResponse:
        return self._ask(agent.snapshot(job_id, group, backend_config))

    def restore(self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None) -> RestoreResponse:
        return self._ask(agent.restore(job_id, group, backend_config))

    def get_operation(self, operation_id: str) -> GetOperationResponse:
        return self._ask(agent.operation(operation_id))

    def status(self) -> StatusResponse:
        return self._ask(agent.status())

    def check_health(self, service: str = "") -> HealthResponse:
        """Whether the agent serves, by the standard health service: "SERVING" or "NOT_SERVING"."""
        return self._ask(agent.health(service))

    def wait_for_operation(self, operation_id: str, poll_interval_sec: float = 1.0) -> GetOperationResponse:
        """Ask until the operation has ended, well or badly: soon at first, then every `poll_interval_sec`."""
        for pause_s in agent.pauses(poll_interval_sec):
            reply = self.get_operation(operation_id)
            if agent.has_ended(reply):
                return reply
            time.sleep(pause_s)
        raise AssertionError("pauses never end")

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

    def _connect(self, channel: grpc.Channel | None) -> None:
        try:
            self.channel = channel or open_channel(check_address(self._endpoint, "endpoint"), [])
        except GrpcUnusableError as err:
            raise SnapshotAgentError(str(err)) from err
        self.stub: Any = pb2_grpc.SnapshotAgentServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self.channel)
        self._pid = os.getpid()

    def _ask(self, question: Question[T]) -> T:
        if self._own_channel and os.getpid() != self._pid and not self._closed:
            self._left_behind = self.channel  # Not torn down in a forked child: the connection is its parent's.
            self._connect(None)
        stub = self.stub if hasattr(self.stub, question.method) else self._health
        try:
            return question.read(getattr(stub, question.method)(question.request))
        except (grpc.RpcError, ValueError) as err:
            if self._closed:
                raise SnapshotAgentError(agent.CLOSED) from err
            if not isinstance(err, grpc.RpcError):
                raise  # not ours: its owner has closed the channel that was given
            raise agent_error(err, f"{question.method} failed at the snapshot agent", self._endpoint) from err


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
