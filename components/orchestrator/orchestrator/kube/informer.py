"""A copy of a collection of the API server: list it, watch from there, list again after anything unusual."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.kube.api import GONE, ApiError, ApiRefused, Object
from orchestrator.logs import say

ROUND_S = 240
"""The server ends a watch after this long; the next one goes on from the version that was seen last."""
FIRST_PAUSE_S = 0.2


class Source(Protocol):
    """What an informer asks of the API server: see `ApiServer`."""

    async def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> Object: ...

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Object]: ...


@dataclass(frozen=True, slots=True)
class InformerLimits:
    """All in seconds."""

    silence_s: float = 75.0
    """A server sends a bookmark about once a minute: what says nothing for longer is dead, whatever TCP thinks."""
    longest_pause_s: float = 10.0
    """Between two attempts to reach a server that is away."""
    brief_s: float = 1.0
    """A watch that ends sooner did nothing: list again, and not at once."""


class Informer:
    """`objects` holds what the server last said, by name (namespaced: NAMESPACE/NAME); `run` keeps it so.

    While the server is away they stay as they were. `changed` is called after each list and each event.
    """

    def __init__(
        self, api: Source, path: str, changed: Callable[[], None], *, query: Mapping[str, str] | None = None,
        limits: InformerLimits | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.was_listed = False
        self._api = api
        self._path = path
        self._query = dict(query or {})
        self._changed = changed
        self._limits = limits or InformerLimits()
        self._clock = clock
        self._failures = 0

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                version = await self._watch(version)
            except ApiError as error:
                version = None
                if not (isinstance(error, ApiRefused) and error.code == GONE):
                    await self._pause(error)

    async def _list(self) -> str:
        found = await self._api.request("GET", self._path, query=self._query)
        self.objects = {_name(item): item for item in found.get("items") or ()}
        self.was_listed = True
        if self._failures:
            say(f"the API server tells {self._path} again", path=self._path)
        self._failures = 0
        self._changed()
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str | None:
        """Take in events until the server ends the stream; the version to go on from, None: begin anew."""
        began_s = self._clock()
        query = {
            **self._query, "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(ROUND_S)}
        async for event in self._api.watch(self._path, query, self._limits.silence_s):
            found: Any = event["object"]
            version = found["metadata"]["resourceVersion"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self.objects[_name(found)] = found
                    self._changed()
                case "DELETED":
                    self.objects.pop(_name(found), None)
                    self._changed()
        if self._clock() - began_s < self._limits.brief_s:
            await self._pause(None)
            return None
        return version

    async def _pause(self, error: ApiError | None) -> None:
        self._failures += 1
        if self._failures == 1 and error is not None:
            say(f"what the API server tells of {self._path} is missed for now: {error}", level=logging.WARNING,
                path=self._path)
        longest_s = min(self._limits.longest_pause_s, FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10))
        await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))


def _name(found: Object) -> str:
    metadata = found["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])
