"""Refusals of the core as gRPC statuses: the one table."""

import grpc

from orchestrator.core.types import Refusal, RefusalCode

STATUS = {
    RefusalCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RefusalCode.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    RefusalCode.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalCode.ABORTED: grpc.StatusCode.ABORTED,
    RefusalCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    RefusalCode.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
}

STOPPING = Refusal(
    RefusalCode.UNAVAILABLE,
    "the orchestrator is stopping; nothing was changed. Repeat the call with the same request_id when it is back.")


def unknown_group(group: str) -> Refusal:
    """A call names a group that nobody configured."""
    return Refusal(
        RefusalCode.NOT_FOUND, f"group {group!r} is not known; ListGroups names those that are")
