"""As much of an API server as a watch needs: lists, watches with versions, bookmarks, 410, silence, and being away."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

PODS = "/api/v1/pods"
GROUPS = "/apis/timeslice.io/v1alpha1/timeslicegroups"

Object = dict[str, Any]


class FakeApiServer:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {PODS: {}, GROUPS: {}}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.refuse_with: int | None = None
        """Every request is answered with this status."""
        self.compacted = 0
        """Versions up to this one cannot be watched from: 410."""
        self._version = 100
        self._log: list[tuple[int, str, str, Object]] = []
        self._news = asyncio.Condition()
        self._is_mute = False
        self._cut = 0
        self._runner: web.AppRunner | None = None
        self.port = 0

    # -- objects

    async def put(self, path: str, found: Object) -> Object:
        """An object comes, or is changed."""
        metadata = found["metadata"]
        metadata.setdefault("uid", str(uuid.uuid4()))
        kind = "MODIFIED" if metadata["uid"] in self.objects[path] else "ADDED"
        self.objects[path][metadata["uid"]] = found
        await self._tell(path, kind, found)
        return found

    async def delete(self, path: str, found: Object) -> None:
        del self.objects[path][found["metadata"]["uid"]]
        await self._tell(path, "DELETED", found)

    async def pod(self, name: str, node: str = "n", *, uid: str | None = None, **labels: str) -> Object:
        """`labels`: job, group."""
        names = {"job": "timeslice.io/job-id", "group": "timeslice.io/group"}
        metadata: Object = {"name": name, "namespace": "default", "labels": {names[k]: v for k, v in labels.items()}}
        if uid is not None:
            metadata["uid"] = uid
        return await self.put(PODS, {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}})

    async def group(self, name: str, *accelerators: str, node: str = "n", **metadata: str) -> Object:
        known = [g for g in self.objects[GROUPS].values() if g["metadata"]["name"] == name]
        kept = known[0]["metadata"] if known else {}
        spec = {"nodes": [{"name": node, "accelerators": list(accelerators)}]}
        return await self.put(GROUPS, {"metadata": {**kept, "name": name, **metadata}, "spec": spec})

    # -- what goes wrong

    async def end_watches(self) -> None:
        """The server ends all streams in order, as it does after their timeout."""
        self._cut += 1
        async with self._news:
            self._news.notify_all()

    def mute(self) -> None:
        """From now on nothing comes on the streams that are open, and nobody is told."""
        self._is_mute = True
        self._cut += 1

    def compact(self) -> None:
        """Everything up to now can only be listed."""
        self.compacted = self._version

    # -- serving

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    async def start(self) -> None:
        app = web.Application()
        for path in self.objects:
            app.router.add_get(path, self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Away: connections break, new ones are refused."""
        if self._runner is not None:
            await self.end_watches()
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, path: Path) -> Path:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        user = {"name": "u", "user": {"token": "secret"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
        path.write_text(json.dumps({**config, "clusters": [cluster], "contexts": [context], "users": [user]}))
        return path

    async def until_watched(self, times: int = 1) -> None:
        """Wait until so many watches were asked for, of all kinds together."""
        async with self._news:
            await self._news.wait_for(lambda: sum("watch" in query for _, query in self.requests) >= times)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.requests.append((path, query))
        async with self._news:
            self._news.notify_all()
        if self.refuse_with is not None:
            return web.json_response({"kind": "Status", "message": "no"}, status=self.refuse_with)
        if "watch" in query:
            return await self._watch(request, query)
        found = [o for o in self.objects[path].values() if self._is_wanted(o, query)]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": found})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        seen, cut = int(query["resourceVersion"]), self._cut
        if seen < self.compacted:
            status = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(_line("ERROR", status))
            return response
        while True:
            for version, path, kind, found in list(self._log):
                if version > seen and path == request.path and self._is_wanted(found, query):
                    await response.write(_line(kind, found))
                seen = max(seen, version)
            if self._cut != cut and not self._is_mute:
                return response
            async with self._news:
                while self._is_mute or (self._version <= seen and self._cut == cut):
                    await self._news.wait()

    def _is_wanted(self, found: Object, query: dict[str, str]) -> bool:
        selector = query.get("fieldSelector", "")
        return not selector or selector == f"spec.nodeName={found['spec'].get('nodeName')}"

    async def _tell(self, path: str, kind: str, found: Object) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, path, kind, json.loads(json.dumps(found))))
        async with self._news:
            self._news.notify_all()


def _line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"
