"""An API server as far as the store asks it: objects with versions, optimistic locking, and failures on demand."""

import asyncio
import copy
import json
from collections import deque
from typing import Any

from orchestrator.kube.api import ApiError, ApiRefused

Object = dict[str, Any]


class FakeApi:
    """Survives the stores that use it, as a cluster does."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.is_full = False
        self.next_writes: deque[tuple[ApiError, bool]] = deque()
        """For each next PUT of a status: what it ends with, and whether it was done all the same."""
        self.puts: list[str] = []
        """Paths of all PUTs of a status."""
        self.has_put = asyncio.Event()
        """Set by each PUT of a status."""
        self._version = 0

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Any = None, content_type: str = "application/json"
    ) -> Object:
        body = copy.deepcopy(body)
        if method == "GET":
            return self._get(path)
        if self.is_full:
            raise ApiRefused(500, "InternalError", "etcdserver: mvcc: database space exceeded")
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                raise ApiRefused(409, "AlreadyExists", path)
            return self._store(path, {**body, "metadata": {**body["metadata"], "uid": f"uid {path}"}})
        if method == "PATCH":
            assert content_type == "application/apply-patch+yaml"
            found = self.objects.get(path) or {"metadata": {"name": body["metadata"]["name"], "uid": f"uid {path}"}}
            # All of it comes from one manager here: what it states no more is gone.
            return self._store(path, {**found, "spec": body["spec"]})
        assert method == "PUT"
        failure, is_done = None, True
        if path.endswith("/status"):
            self.puts.append(path)
            self.has_put.set()
            failure, is_done = self.next_writes.popleft() if self.next_writes else (None, True)
        result = self._put(path, body) if is_done else {}
        if failure is not None:
            raise failure
        return result

    def touch(self, path: str) -> None:
        """Somebody changes something else about the object."""
        self._store(path, self.objects[path])

    def _get(self, path: str) -> Object:
        if path.endswith("/timeslicegroups"):
            return {"items": [copy.deepcopy(found) for key, found in self.objects.items() if key.startswith(path)]}
        if path not in self.objects:
            raise ApiRefused(404, "NotFound", path)
        return copy.deepcopy(self.objects[path])

    def _put(self, path: str, body: Object) -> Object:
        target = path.removesuffix("/status")
        found = self.objects.get(target)
        if found is None:
            raise ApiRefused(404, "NotFound", target)
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiRefused(409, "Conflict", "the object has been modified")
        part = "status" if path.endswith("/status") else "spec"
        return self._store(target, {**found, part: json.loads(json.dumps(body[part]))})

    def _store(self, path: str, found: Object) -> Object:
        self._version += 1
        self.objects[path] = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self._version)}}
        return copy.deepcopy(self.objects[path])
