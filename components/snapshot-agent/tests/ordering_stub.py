"""A stub that gives orders on the stream for them, so that a test of calls is one of orders too."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

NO_METADATA = grpc.aio.Metadata()


class OrderingStub:
    """As the agent's stub; Snapshot, Restore, Lock and Unlock end as calls of their own do."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._ids = itertools.count(1)
        self._stream: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[pb.OrderAnswer]] = {}
        self._writing = asyncio.Lock()  # a stream takes one message at a time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    async def Snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotResponse:
        return (await self.order(snapshot=request)).snapshot

    async def Restore(self, request: pb.RestoreRequest) -> pb.RestoreResponse:
        return (await self.order(restore=request)).restore

    async def Lock(self, request: pb.LockRequest) -> pb.LockResponse:
        return (await self.order(lock=request)).lock

    async def Unlock(self, request: pb.UnlockRequest) -> pb.UnlockResponse:
        return (await self.order(unlock=request)).unlock

    async def order(self, **call: Any) -> pb.OrderAnswer:
        """Raises: grpc.aio.AioRpcError if it is refused."""
        if self._stream is None:
            self._stream = self._stub.Orders()
            self._reading = asyncio.create_task(self._read(), name="read answers")
        order = pb.Order(id=next(self._ids), **call)
        answer = self._answers[order.id] = asyncio.get_running_loop().create_future()
        async with self._writing:
            await self._stream.write(order)
        told = await answer
        if told.HasField("refusal"):
            [code] = [code for code in grpc.StatusCode if code.value[0] == told.refusal.code]
            raise grpc.aio.AioRpcError(code, NO_METADATA, NO_METADATA, told.refusal.details)
        return told

    async def _read(self) -> None:
        async for told in self._stream:
            self._answers.pop(told.id).set_result(told)

    def close(self) -> None:
        """End the stream in the middle of whatever is under way."""
        if self._stream is not None:
            assert self._reading is not None
            self._reading.cancel()
            self._stream.cancel()
