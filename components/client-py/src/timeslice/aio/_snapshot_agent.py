"""The client of a node's snapshot agent for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb2_grpc
from timeslice._aio.attempts import ends
from timeslice._aio.changed import Changed
from timeslice._aio.channels import close_channel, open_channel
from timeslice._core import agent
from timeslice._core.agent import Question
from timeslice._forks import FORKS
from timeslice._settings import check_address
from timeslice.snapshot_agent.client import SnapshotAgentError, agent_error
from timeslice.snapshot_agent.types import (
    GetOperationResponse,
    HealthResponse,
    RestoreResponse,
    SnapshotResponse,
    StatusResponse,
)

T = TypeVar("T")


class SnapshotAgentClient:
    """Asks one agent. Every failure is a SnapshotAgentError; a cancelled call is over at once.

    It connects at the first call, and belongs to the event loop of that call.
    """

    def __init__(self, endpoint: str | None = None, channel: grpc.aio.Channel | None = None) -> None:
        """
        Args:
            endpoint: "unix:PATH" or "HOST:PORT".
            channel: used instead of a channel of our own, and left open by `close`.
        Raises:
            ValueError: neither is given, or the endpoint is no address.
        """
        if channel is None and not endpoint:
            raise ValueError("SnapshotAgentClient needs an endpoint or a channel")
        self._address = check_address(endpoint, "endpoint") if channel is None and endpoint else ""
        self._endpoint = endpoint or "the given channel"
        self._own_channel = channel is None
        self.channel = channel
        self._changed = Changed()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stubs: list[Any] = []

    async def __aenter__(self) -> SnapshotAgentClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what is under way, and close the channel if it is the client's own. A second call does nothing."""
        self._closed = True
        self._changed.notify_all()
        channel, self.channel = self.channel, None
        if channel is not None and self._own_channel and FORKS.unusable is None:
            await close_channel(channel)

    async def snapshot(
        self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None
    ) -> SnapshotResponse:
        """Start to save the job's device memory to the host."""
        return await self._ask(agent.snapshot(job_id, group, backend_config))

    async def restore(
        self, job_id: str, group: str = "", backend_config: pb2.BackendConfig | None = None
    ) -> RestoreResponse:
        """Start to copy the job's device memory back."""
        return await self._ask(agent.restore(job_id, group, backend_config))

    async def get_operation(self, operation_id: str) -> GetOperationResponse:
        """How far the operation is."""
        return await self._ask(agent.operation(operation_id))

    async def status(self) -> StatusResponse:
        """The node's jobs and accelerators."""
        return await self._ask(agent.status())

    async def check_health(self, service: str = "") -> HealthResponse:
        """Whether the agent serves, by the standard health service: "SERVING" or "NOT_SERVING"."""
        return await self._ask(agent.health(service))

    async def wait_for_operation(self, operation_id: str, poll_interval_sec: float = 1.0) -> GetOperationResponse:
        """Ask until the operation has ended, well or badly: soon at first, then every `poll_interval_sec`."""
        for pause_s in agent.pauses(poll_interval_sec):
            reply = await self.get_operation(operation_id)
            if agent.has_ended(reply):
                return reply
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    async def snapshot_and_wait(
        self,
        job_id: str,
        group: str = "",
        poll_interval_sec: float = 1.0,
        backend_config: pb2.BackendConfig | None = None,
    ) -> GetOperationResponse:
        """Save the job's device memory, and wait for the end."""
        begun = await self.snapshot(job_id, group, backend_config)
        return await self.wait_for_operation(begun.operation_id, poll_interval_sec)

    async def restore_and_wait(
        self,
        job_id: str,
        group: str = "",
        poll_interval_sec: float = 1.0,
        backend_config: pb2.BackendConfig | None = None,
    ) -> GetOperationResponse:
        """Copy the job's device memory back, and wait for the end."""
        begun = await self.restore(job_id, group, backend_config)
        return await self.wait_for_operation(begun.operation_id, poll_interval_sec)

    async def _ask(self, question: Question[T]) -> T:
        call = self._method(question.method)(question.request)
        if not await ends(call, self._changed, lambda: self._closed):
            raise SnapshotAgentError(agent.CLOSED)
        try:
            return question.read(await call)
        except grpc.aio.AioRpcError as err:
            raise agent_error(err, f"{question.method} failed at the snapshot agent", self._endpoint) from err

    def _method(self, name: str) -> Any:
        if FORKS.unusable is not None:
            raise SnapshotAgentError(FORKS.unusable)
        if self._closed:
            raise SnapshotAgentError(agent.CLOSED)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self.channel = self.channel or open_channel(self._address, [])
            self._stubs = [
                pb2_grpc.SnapshotAgentServiceStub(self.channel),  # type: ignore[no-untyped-call]
                health_pb2_grpc.HealthStub(self.channel),
            ]
        elif self._loop is not loop:
            raise SnapshotAgentError(
                "this client belongs to another event loop, the one of its first call; make a new"
                " timeslice.aio.SnapshotAgentClient for this one"
            )
        return next(getattr(stub, name) for stub in self._stubs if hasattr(stub, name))
