"""Which ways of not getting an answer are an agent's own word."""

import grpc
import pytest

from orchestrator.agents.calls import AgentError, answer
from orchestrator.core.types import AgentErrorKind


async def failing(code: grpc.StatusCode, details: str) -> None:
    raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        ("Internal error from Core", AgentErrorKind.UNANSWERED),  # of grpc.aio, on this side
        ("the agent has a bug", AgentErrorKind.REFUSED),
    ],
)
async def test_a_write_to_a_stream_that_is_over_is_not_the_agents_refusal(details: str, kind: AgentErrorKind) -> None:
    with pytest.raises(AgentError, match=details) as caught:
        await answer(failing(grpc.StatusCode.INTERNAL, details))
    assert caught.value.kind is kind
