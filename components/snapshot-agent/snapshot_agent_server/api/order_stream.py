"""Orders on one stream instead of a call each: read, carried out side by side, answered as they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

log = logging.getLogger(__name__)

Method = Callable[[Any, Any], Awaitable[Any]]


class _Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class _OrderContext:
    """What a method of the service needs of its call's context."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise _Aborted(code, details)


async def serve_orders(methods: Mapping[str, Method], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Serve a stream until the caller closes it, and all its orders are answered.

    Args:
        methods: what carries an order out, by the name of the order's field.
        context: of the stream, whose callers may give orders.
    """
    writing = asyncio.Lock()  # a stream takes one message at a time

    async def carry_out(order: pb.Order) -> None:
        kind = order.WhichOneof("call")
        try:
            if kind is None:
                raise _Aborted(grpc.StatusCode.UNIMPLEMENTED, "this agent knows no such order; make a call of it")
            answer = pb.OrderAnswer(id=order.id, **{kind: await methods[kind](getattr(order, kind), _OrderContext())})
        except _Aborted as error:
            answer = _refused(order, error.code, error.details)
        except Exception as error:
            log.exception("an order failed")
            answer = _refused(order, grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        async with writing:
            await context.write(answer)

    # As with calls of their own: when the stream breaks nobody waits for an answer any more; what has begun goes on.
    async with asyncio.TaskGroup() as tasks:
        while (order := await context.read()) is not grpc.aio.EOF:
            tasks.create_task(carry_out(order), name=f"order {order.id}")


def _refused(order: pb.Order, code: grpc.StatusCode, details: str) -> pb.OrderAnswer:
    return pb.OrderAnswer(id=order.id, refusal=pb.OrderRefusal(code=code.value[0], details=details))
