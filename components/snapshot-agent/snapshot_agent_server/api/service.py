"""The gRPC service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from functools import partial
from typing import Any, Protocol

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc
from snapshot_agent_server.api import requests
from snapshot_agent_server.api.channels import Channel
from snapshot_agent_server.api.errors import BadRequest, NotBuilt, RefusedCall, abort
from snapshot_agent_server.api.messages import operation_response
from snapshot_agent_server.api.order_stream import Method, serve_orders
from snapshot_agent_server.api.streams import Stream, StreamEnd
from snapshot_agent_server.core.effects import Accept, ChannelEnd, EndChannel
from snapshot_agent_server.core.ids import GroupId, OperationId
from snapshot_agent_server.core.operations import Operation
from snapshot_agent_server.core.refusals import Refusal
from snapshot_agent_server.core.workloads import CommandResult

Context = grpc.aio.ServicerContext[Any, Any]

ACCEPTED = ("timeslice-registered", "1")
"""Initial metadata of a WorkloadChannel whose registration was accepted."""

BREAK_SHOWS_S = 0.05
"""A connection that breaks ends the messages first, as a workload does that closes its side; gRPC cancels the call
then. So long it is not taken for closed, and a workload that may come back not for gone."""

END_OF = {
    StreamEnd.TOO_SLOW: (grpc.StatusCode.RESOURCE_EXHAUSTED, "this stream fell too far behind; watch again"),
    StreamEnd.OLD_EPOCH: (
        grpc.StatusCode.FAILED_PRECONDITION,
        "another orchestrator leads with a higher leader_epoch; stop, or become leader again",
    ),
    StreamEnd.CLOSING: (grpc.StatusCode.UNAVAILABLE, "the agent is shutting down; watch again when it is back"),
}


ENDED_CHANNEL = {
    ChannelEnd.REPLACED: (
        grpc.StatusCode.ABORTED,
        "another workload has registered for the same job and group since, and counts; this one is told nothing more",
    ),
    ChannelEnd.GONE: (
        grpc.StatusCode.NOT_FOUND,
        "the context is gone: its processes have ended; register again when there are new ones",
    ),
}


class Agent(Protocol):
    """What the shell does for this edge. Refusals are raised as RefusedCall."""

    async def request(
        self, call: requests.Call, then: requests.Call | None = None
    ) -> tuple[Accept, Accept | Refusal | None]: ...

    async def kill(self, call: requests.KillCall) -> Accept: ...

    def groups(self) -> Collection[GroupId]: ...

    def open_channel(self) -> Channel: ...

    async def register(self, registration: requests.Registration) -> None: ...

    def answered(self, channel: Channel, result: CommandResult) -> None: ...

    def close_channel(self, channel: Channel, is_closed: bool) -> None: ...

    async def watch(self, epoch: int, takes_together: bool) -> Stream: ...

    def unwatch(self, stream: Stream) -> None: ...

    def operation(self, operation: OperationId) -> Operation | None: ...

    def status(self, per_context: bool) -> pb.StatusResponse: ...


class SnapshotAgentService(pb_grpc.SnapshotAgentServiceServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def Snapshot(self, request: pb.SnapshotRequest, context: Context) -> pb.SnapshotResponse:
        try:
            call = requests.snapshot_call(request)
            accepted, then = await self._agent.request(call, _then(request))
        except (BadRequest, NotBuilt, RefusedCall) as error:
            await abort(context, error)
        answer = pb.SnapshotResponse(operation_id=accepted.operation or "")
        if isinstance(then, Accept):
            answer.then_operation_id = then.operation or ""
        return answer

    async def Restore(self, request: pb.RestoreRequest, context: Context) -> pb.RestoreResponse:
        try:
            accepted, _ = await self._agent.request(requests.restore_call(request))
        except (BadRequest, NotBuilt, RefusedCall) as error:
            await abort(context, error)
        return pb.RestoreResponse(operation_id=accepted.operation or "")

    async def Lock(self, request: pb.LockRequest, context: Context) -> pb.LockResponse:
        try:
            accepted, _ = await self._agent.request(requests.lock_call(request))
        except (BadRequest, NotBuilt, RefusedCall) as error:
            await abort(context, error)
        return pb.LockResponse(locked_pids=accepted.locked_pids)

    async def Unlock(self, request: pb.UnlockRequest, context: Context) -> pb.UnlockResponse:
        try:
            await self._agent.request(requests.unlock_call(request))
        except (BadRequest, NotBuilt, RefusedCall) as error:
            await abort(context, error)
        return pb.UnlockResponse()

    async def Kill(self, request: pb.KillRequest, context: Context) -> pb.KillResponse:
        try:
            accepted = await self._agent.kill(requests.kill_call(request))
        except (BadRequest, RefusedCall) as error:
            await abort(context, error)
        return pb.KillResponse(killed_pids=accepted.killed_pids)

    async def Orders(self, orders: AsyncIterator[pb.Order], context: Context) -> None:
        # By the class: whoever may open the stream may give each of its orders, and is not asked again.
        service = SnapshotAgentService
        methods: dict[str, Method] = {
            "snapshot": partial(service.Snapshot, self),
            "restore": partial(service.Restore, self),
            "lock": partial(service.Lock, self),
            "unlock": partial(service.Unlock, self),
        }
        await serve_orders(methods, context)

    async def GetOperation(self, request: pb.GetOperationRequest, context: Context) -> pb.GetOperationResponse:
        try:
            wanted = requests.operation_id(request)
        except BadRequest as error:
            await abort(context, error)
        operation = self._agent.operation(wanted)
        if operation is None:
            text = f"no operation {wanted!r}; outcomes are kept for an hour. Read the job's state with Status."
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return operation_response(operation, time.monotonic())

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        return self._agent.status(request.per_context)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.AgentEvent]:
        try:
            stream = await self._agent.watch(requests.epoch(request), request.takes_together)
        except (BadRequest, RefusedCall) as error:
            await abort(context, error)
        try:
            while not isinstance(event := await stream.next(), StreamEnd):
                yield event
        finally:
            self._agent.unwatch(stream)
        await context.abort(*END_OF[event])

    async def WorkloadChannel(self, messages: AsyncIterator[pb.WorkloadMessage], context: Context) -> None:
        """Registers what each `register` message says (the first must be one), sends commands, and takes their results.

        Initial metadata goes out when the first is accepted: until then a workload does not know. It is not empty,
        since a refusal looks like empty metadata and then, a moment later, like the end of the call. Processes that
        were registered outlive the stream. So do callbacks, until the workload half-closes the stream, or ends.
        """
        channel = self._agent.open_channel()
        accepted = asyncio.Event()
        reading = asyncio.create_task(self._read(messages, channel, context, accepted), name=f"read {channel.id}")
        writing = asyncio.create_task(_write(channel, context, accepted), name=f"write {channel.id}")
        is_closed = False
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                await context.abort(*ENDED_CHANNEL[writing.result().end])
            reading.result()
            await asyncio.sleep(BREAK_SHOWS_S)
            is_closed = True
        except (BadRequest, NotBuilt, RefusedCall) as error:
            await abort(context, error)
        finally:
            for task in (reading, writing):
                task.cancel()
                if task.done() and not task.cancelled():
                    task.exception()  # one of them has told already why the channel is over
            self._agent.close_channel(channel, is_closed)

    async def _read(
        self, messages: AsyncIterator[pb.WorkloadMessage], channel: Channel, context: Context, accepted: asyncio.Event
    ) -> None:
        """Until the workload closes its side. Raises: BadRequest, NotBuilt, RefusedCall."""
        async for message in messages:
            match message.WhichOneof("message"):
                case "register":
                    groups = self._agent.groups()
                    await self._agent.register(requests.registration(message.register, channel.id, groups))
                case "result" if accepted.is_set():
                    self._agent.answered(channel, requests.command_result(message.result))
                case _ if not accepted.is_set():
                    raise BadRequest("message", "the first message of the channel must be `register`")
            if not accepted.is_set():
                await context.send_initial_metadata((ACCEPTED,))
                accepted.set()


def _then(request: pb.SnapshotRequest) -> requests.Call | None:
    """The restore that came along; None as well if it says what cannot be: the answer shows that it was not taken."""
    if not request.HasField("then_restore"):
        return None
    try:
        return requests.restore_call(request.then_restore)
    except (BadRequest, NotBuilt):
        return None


async def _write(channel: Channel, context: Context, accepted: asyncio.Event) -> EndChannel:
    """Write what the core sends, behind the initial metadata, until it ends the channel."""
    await accepted.wait()
    while not isinstance(command := await channel.next(), EndChannel):
        await context.write(command)
    return command
