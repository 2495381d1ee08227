"""Orders to one agent on one stream, or a call each where it has no such stream."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import grpc

from orchestrator.agents.calls import AgentError, answer
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class OrderStream:
    """Opened by the first order, and again by the first one after it broke."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._stream: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.OrderAnswer]] = {}
        self._writing = asyncio.Lock()
        self._is_known = True
        """Whether the agent may know this stream."""

    async def order(self, kind: str, request: Any, timeout_s: float) -> Any:
        """Give an order: `kind` is its field in Order. Its answer; AgentError as for a call of its own."""
        if self._is_known:
            try:
                return await self._order(kind, request, timeout_s)
            except AgentError as error:
                if error.code is not grpc.StatusCode.UNIMPLEMENTED or self._is_known:
                    raise
        return await answer(getattr(self._stub, kind.capitalize())(request, timeout=timeout_s))

    def forget(self) -> None:
        """Another agent may answer from now on."""
        self._is_known = True

    def close(self) -> None:
        """End the stream; who waits for an answer gets none."""
        if self._reading is not None:
            self._reading.cancel()
        if self._stream is not None:
            self._stream.cancel()

    async def _order(self, kind: str, request: Any, timeout_s: float) -> Any:
        number = next(self._ids)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                if self._stream is None:
                    self._stream = self._stub.Orders()
                    self._reading = asyncio.create_task(self._read(self._stream), name="read orders' answers")
                await self._write(self._stream, pb.Order(id=number, **{kind: request}))
                told = await waiting
        except TimeoutError:
            raise AgentError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # or asyncio says that nobody looked at it
        if told.HasField("refusal"):
            refusal = told.refusal
            raise AgentError(CODES.get(refusal.code, grpc.StatusCode.UNKNOWN), refusal.details)
        return getattr(told, kind)

    async def _write(self, stream: Any, order: pb.Order) -> None:
        async with self._writing:
            try:
                await answer(stream.write(order))
            except AgentError as error:
                self._over(stream, error)
                raise

    async def _read(self, stream: Any) -> None:
        """Hand out answers until the stream ends; then nobody gets one any more."""
        error = AgentError(grpc.StatusCode.UNAVAILABLE, "the agent ended its stream")
        try:
            while (told := await answer(stream.read())) is not grpc.aio.EOF:
                waiting = self._waiting.get(told.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
        except AgentError as broken:
            error = broken
        finally:
            self._over(stream, error)

    def _over(self, stream: Any, error: AgentError) -> None:
        if stream is not self._stream:
            return  # that was told already
        self._stream = None
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            self._is_known = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
