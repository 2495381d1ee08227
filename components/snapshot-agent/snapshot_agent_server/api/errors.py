"""Refusals to gRPC status codes: the one table."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from snapshot_agent_server.core.refusals import Refusal, RefusalKind

CODE_OF = {
    RefusalKind.STALE: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.UNKNOWN_GROUP: grpc.StatusCode.NOT_FOUND,
    RefusalKind.UNKNOWN_CONTEXT: grpc.StatusCode.NOT_FOUND,
    RefusalKind.UNKNOWN_OPERATION: grpc.StatusCode.NOT_FOUND,
    RefusalKind.OTHER_OPERATION: grpc.StatusCode.ALREADY_EXISTS,
    RefusalKind.REPLACED: grpc.StatusCode.ABORTED,
    RefusalKind.UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.BAD_PROCESS: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.PROCESS_TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    RefusalKind.WRONG_USER: grpc.StatusCode.PERMISSION_DENIED,
    RefusalKind.TIMED_OUT: grpc.StatusCode.ABORTED,
    RefusalKind.NOT_DONE: grpc.StatusCode.ABORTED,
    RefusalKind.INDETERMINATE: grpc.StatusCode.DEADLINE_EXCEEDED,
    RefusalKind.CLOSING: grpc.StatusCode.UNAVAILABLE,
}


class RefusedCall(Exception):
    """A call that was refused by the core."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class BadRequest(Exception):
    """A field with an impossible value. `field` is its name on the wire."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class NotBuilt(Exception):
    """A part of the contract that this agent does not have yet. The text names the field."""


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: RefusedCall | BadRequest | NotBuilt) -> NoReturn:
    match error:
        case RefusedCall():
            await context.abort(CODE_OF[error.refusal.kind], str(error))
        case BadRequest():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        case NotBuilt():
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
    raise AssertionError("abort returned")
