"""An informer sees what happened whatever becomes of its watch: ends, errors, 410, silence (rows 29 and 30)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from orchestrator.kube.api import ApiError, ApiRefused, ApiUnclear, ApiUnreachable
from orchestrator.kube.informer import Informer, InformerLimits

Object = dict[str, Any]
LIMITS = InformerLimits(silence_s=5.0, longest_pause_s=0.001, brief_s=0.0)


def thing(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Server:
    """A collection with a version; what its lists and watches do can be told beforehand."""

    def __init__(self) -> None:
        self.things: dict[str, Object] = {}
        self.version = 0
        self.log: list[tuple[int, Object]] = []
        self.fails: list[ApiError] = []
        """What the next requests end with."""
        self.lists = 0
        self.watches: list[int] = []
        """The versions that watches began from."""
        self._news = asyncio.Event()
        self._ending: ApiError | None = None
        self._is_ended = False

    def set(self, name: str) -> None:
        self.version += 1
        kind = "MODIFIED" if name in self.things else "ADDED"
        self.things[name] = thing(name, self.version)
        self._tell(kind, self.things[name])

    def delete(self, name: str) -> None:
        self.version += 1
        del self.things[name]
        self._tell("DELETED", thing(name, self.version))

    def bookmark(self) -> None:
        self.version += 1
        self._tell("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def end_watch(self, error: ApiError | None = None) -> None:
        """In order, or with an error."""
        self._ending, self._is_ended = error, True
        self._news.set()

    async def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> Object:
        assert (method, path) == ("GET", "/things")
        if self.fails:
            raise self.fails.pop(0)
        self.lists += 1
        return {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.things.values())}

    async def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Object]:
        at = int(query["resourceVersion"])
        self.watches.append(at)
        while True:
            for version, event in list(self.log):
                if version > at:
                    at = version
                    yield event
            if self._is_ended:
                self._is_ended = False
                error, self._ending = self._ending, None
                if error is not None:
                    raise error
                return
            self._news.clear()
            await self._news.wait()

    def _tell(self, kind: str, found: Object) -> None:
        self.log.append((self.version, {"type": kind, "object": found}))
        self._news.set()


class Followed:
    """An informer at work; `until` waits for a state of it."""

    def __init__(self, server: Server) -> None:
        self._news = asyncio.Event()
        self.informer = Informer(server, "/things", self._news.set, limits=LIMITS)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def names(self) -> set[str]:
        return set(self.informer.objects)


@pytest.fixture
async def followed() -> AsyncIterator[tuple[Server, Followed]]:
    server = Server()
    server.set("a")
    found = Followed(server)
    running = asyncio.create_task(found.informer.run())
    await found.until(lambda: found.names() == {"a"})
    yield server, found
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_it_follows_what_comes_changes_and_goes(followed: tuple[Server, Followed]) -> None:
    server, found = followed
    server.set("b")
    await found.until(lambda: found.names() == {"a", "b"})
    server.set("a")
    await found.until(lambda: found.informer.objects["a"]["metadata"]["resourceVersion"] == "3")
    server.delete("a")
    await found.until(lambda: found.names() == {"b"})
    assert server.lists == 1


async def test_a_watch_that_ends_in_order_goes_on_from_the_last_version(followed: tuple[Server, Followed]) -> None:
    server, found = followed
    server.bookmark()
    server.end_watch()
    server.set("b")
    await found.until(lambda: found.names() == {"a", "b"})
    assert server.lists == 1
    assert server.watches[-1] >= 2


@pytest.mark.parametrize("error", [
    ApiRefused(410, "Expired", "too old"), ApiUnclear("nothing came for 75 s"), ApiUnreachable("refused")])
async def test_after_an_error_it_lists_again_and_misses_nothing(
    followed: tuple[Server, Followed], error: ApiError
) -> None:
    server, found = followed
    server.fails = [ApiUnreachable("away"), ApiUnclear("cut off")]
    server.end_watch(error)
    server.log.clear()  # what happens meanwhile is told by no watch
    server.version += 1
    server.things = {"b": thing("b", server.version)}
    await found.until(lambda: found.names() == {"b"})
    assert server.lists == 2
