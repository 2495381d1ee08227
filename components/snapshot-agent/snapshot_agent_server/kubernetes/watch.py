"""Keeps a copy of a list of the API server: list, watch from that version, list again after anything unusual."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from snapshot_agent_server import logs
from snapshot_agent_server.kubernetes.api import Api, ApiError, Json

log = logging.getLogger("snapshot_agent")

ROUND_S = 240
"""The server ends a watch after this; the next one goes on from the version that was seen last."""
FIRST_DELAY_S = 0.2
GONE = 410


@dataclass(frozen=True, slots=True)
class WatchLimits:
    silence_s: float = 75.0
    """A server sends a bookmark about once a minute: what says nothing for longer is dead, whatever TCP thinks."""
    longest_delay_s: float = 10.0
    """Between two attempts to reach a server that is away."""
    brief_s: float = 1.0
    """A watch that ends sooner than this has not done anything: list again, and not at once."""


class Reflector:
    """`run` serves until cancelled. `changed` is called with all objects by uid: after each list and after each event.

    What was told stays until something newer is: while the server is away nothing is called.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        changed: Callable[[Mapping[str, Json]], None],
        *,
        what: str,
        limits: WatchLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`what`: for people, as in "pods of this node"."""
        self._api = api
        self._path = path
        self._query = dict(query)
        self._changed = changed
        self._what = what
        self._limits = limits
        self._clock = clock
        self._objects: dict[str, Json] = {}
        self._failures = 0
        self.told = asyncio.Event()
        """Set with the first list."""

    async def run(self) -> None:
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                    self._succeeded()
                version = await self._watch(version)
            except ApiError as error:
                version = ""
                if error.code != GONE:
                    await self._failed(error)

    async def _list(self) -> str:
        found = await self._api.list(self._path, self._query)
        self._objects = {item["metadata"]["uid"]: item for item in found.get("items") or ()}
        self._changed(self._objects)
        self.told.set()
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Take events until the server ends the stream; the version to go on from."""
        since = self._clock()
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(ROUND_S + random.randrange(60)),  # so that agents do not all come at once
        }
        async for event in self._api.watch(self._path, query, self._limits.silence_s):
            found = event["object"]
            version = str(found["metadata"]["resourceVersion"])
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._objects[found["metadata"]["uid"]] = found
                case "DELETED":
                    self._objects.pop(found["metadata"]["uid"], None)
                case _:  # a bookmark: the version is all that it says
                    continue
            self._changed(self._objects)
        if self._clock() - since < self._limits.brief_s:
            raise ApiError(0, "the watch ended as soon as it began")
        return version

    def _succeeded(self) -> None:
        if self._failures > 1:
            logs.transition(log, logging.INFO, f"the API server tells of {self._what} again")
        self._failures = 0

    async def _failed(self, error: ApiError) -> None:
        """Wait before the next attempt; the first in a row that fails may be no more than a server that restarts."""
        self._failures += 1
        if self._failures == 2:
            logs.transition(log, logging.WARNING, f"{self._what}: {error}; {self._advice(error)}")
        delay = min(self._limits.longest_delay_s, FIRST_DELAY_S * 2.0 ** min(self._failures - 1, 16))
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    def _advice(self, error: ApiError) -> str:
        kept = "what is known stays, and it is tried again"
        match error.code:
            case 401 | 403:
                return f"give the agent's service account the verbs list and watch on {self._path}; {kept}"
            case 404:
                return f"the cluster does not know {self._path}: install the CustomResourceDefinition; {kept}"
            case _:
                return kept
