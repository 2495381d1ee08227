"""What answers of an API server mean to us: a real client, and a server that answers with one status."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from orchestrator.kube.api import ApiError, ApiRefused, ApiServer, ApiUnclear, ApiUnreachable

BUSY = {"kind": "Status", "reason": "TooManyRequests", "message": "storage is (re)initializing", "code": 429}


@asynccontextmanager
async def answering(status: int, body: dict[str, object]) -> AsyncIterator[ApiServer]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        async with ApiClient(Configuration(host=f"http://{host}:{port}")) as client:
            yield ApiServer(client)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "meaning"),
    [
        (403, {"reason": "Forbidden", "message": "no"}, ApiRefused),
        (409, {"reason": "Conflict", "message": "no"}, ApiRefused),
        (429, BUSY, ApiUnreachable),
        (500, {"message": "etcdserver: request timed out"}, ApiUnclear),
        (500, {"message": "etcdserver: mvcc: database space exceeded"}, ApiRefused),
        (503, {}, ApiUnclear),
    ],
)
async def test_an_answer_says_whether_to_come_again(
    status: int, body: dict[str, object], meaning: type[ApiError]
) -> None:
    async with answering(status, body) as api:
        with pytest.raises(meaning):
            await api.request("PUT", "/things/a", {})


async def test_a_collection_that_is_not_served_yet_is_no_reason_to_give_up() -> None:
    """Right after its definition was made, or the API server started: who opens the store tries again."""
    async with answering(429, BUSY) as api:
        with pytest.raises(ApiUnreachable, match="initializing"):
            await api.request("GET", "/apis/timeslice.io/v1alpha1/timeslicegroups")
        with pytest.raises(ApiError, match="initializing"):
            async for _ in api.watch("/things", {}, 5.0):
                pass
