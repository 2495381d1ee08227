"""An API server with nodes, claims, DaemonSets and ResourceSlices: it keeps versions, serves watches, and can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web
from kubernetes.aio import client

from gpu_mock_kubernetes.api_server import SLICES, ApiServer

DEADLINE_S = 20.0


class FakeApiServer:
    """Objects are JSON; `async with` starts and stops it."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        """Others, by path."""
        self.fail: list[int] = []
        """Statuses of the next answers, instead of what was asked for."""
        self.requests: list[str] = []
        """Method and path of each, watches as WATCH."""
        self._version = 100
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> FakeApiServer:
        application = web.Application(middlewares=[self._fail])
        application.router.add_get(SLICES, self._list)
        application.router.add_post(SLICES, self._create)
        application.router.add_put(SLICES + "/{name}", self._replace)
        application.router.add_delete(SLICES + "/{name}", self._delete)
        application.router.add_get("/{path:.*}", self._other)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        settings = client.Configuration(host=f"http://127.0.0.1:{port}")
        settings.api_key = {"BearerToken": "bearer secret"}
        self._client = client.ApiClient(settings)
        self.api = ApiServer(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self.end_watches()
        await self._runner.cleanup()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is so, as seen after each request and change."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(true)

    async def forget(self, name: str) -> None:
        """Delete a slice, as the kubelet does when it starts."""
        await self._record("DELETED", self.slices.pop(name))

    async def end_watches(self) -> None:
        """As at a restart of the server."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def _record(self, kind: str, one: dict[str, Any]) -> dict[str, Any]:
        async with self._changed:
            self._version += 1
            one = {**one, "metadata": {**one["metadata"], "resourceVersion": str(self._version)}}
            if kind != "DELETED":
                self.slices[one["metadata"]["name"]] = one
            self._events.append((self._version, kind, one))
            self._changed.notify_all()
        return one

    @web.middleware
    async def _fail(self, request: web.Request, handler: Any) -> web.StreamResponse:
        assert request.headers["authorization"] == "bearer secret"
        method = "WATCH" if "watch" in request.query else request.method
        async with self._changed:
            self.requests.append(f"{method} {request.path}")
            self._changed.notify_all()
        if self.fail:
            return _status(self.fail.pop(0))
        found: web.StreamResponse = await handler(request)
        return found

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        wanted = dict(part.split("=") for part in request.query["fieldSelector"].split(","))
        items = [
            one for one in self.slices.values()
            if one["spec"]["nodeName"] == wanted["spec.nodeName"] and one["spec"]["driver"] == wanted["spec.driver"]
        ]  # fmt: skip
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task
        self._watches.add(task)
        seen = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                async with self._changed:
                    while not self._events or self._events[-1][0] <= seen:
                        await self._changed.wait()
                    new = [event for event in self._events if event[0] > seen]
                for version, kind, one in new:
                    await response.write(json.dumps({"type": kind, "object": one}).encode() + b"\n")
                    seen = version
        except (asyncio.CancelledError, ConnectionError):
            return response
        finally:
            self._watches.discard(task)

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["metadata"]["name"] in self.slices:
            return _status(409)
        return web.json_response(await self._record("ADDED", body))

    async def _replace(self, request: web.Request) -> web.Response:
        body = await request.json()
        found = self.slices.get(request.match_info["name"])
        if not found:
            return _status(404)
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _status(409)
        return web.json_response(await self._record("MODIFIED", body))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.slices:
            return _status(404)
        await self.forget(name)
        return web.json_response({})

    async def _other(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.path)
        return web.json_response(found) if found else _status(404)


def _status(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": f"made to answer {code}"}, status=code)
