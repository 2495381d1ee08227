"""Waiting for an agent's answer, with every way of not getting one as one exception of ours."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc

from orchestrator.core.types import AgentErrorKind

MAX_ERROR_CHARS = 256

_KINDS = {
    grpc.StatusCode.UNAVAILABLE: AgentErrorKind.UNANSWERED,
    grpc.StatusCode.DEADLINE_EXCEEDED: AgentErrorKind.UNANSWERED,
    grpc.StatusCode.CANCELLED: AgentErrorKind.UNANSWERED,
    grpc.StatusCode.FAILED_PRECONDITION: AgentErrorKind.STALE,
    grpc.StatusCode.NOT_FOUND: AgentErrorKind.GONE,
    grpc.StatusCode.UNIMPLEMENTED: AgentErrorKind.UNSUPPORTED,
}
"""Every other status: the agent said no."""

BROKEN_UNDER_WRITE = "Internal error from Core"
"""What grpc.aio says, with INTERNAL, of a write to a stream that is over and of which it has not heard yet why. No
agent said so."""

T = TypeVar("T")


class AgentError(Exception):
    """A call to an agent did not succeed."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}".replace("\n", " ")[:MAX_ERROR_CHARS])
        self.code = code
        self.kind = _KINDS.get(code, AgentErrorKind.REFUSED)


async def answer(call: Awaitable[T]) -> T:
    """The call's answer, or AgentError.

    grpc.aio raises CancelledError for a call that the other side or a closing connection has cancelled, too; that is
    not a cancellation of this task.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.INTERNAL and details.startswith(BROKEN_UNDER_WRITE):
            code = grpc.StatusCode.UNAVAILABLE
        raise AgentError(code, details) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise AgentError(grpc.StatusCode.CANCELLED, "the connection was closed under the call") from None
