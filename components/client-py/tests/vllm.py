"""Stands where vLLM would, with the calls that put its engines to sleep: small programs that remember."""

from __future__ import annotations

import asyncio


class Engine:
    def __init__(self) -> None:
        self.awake = {"weights", "kv_cache"}
        self.weights: str | None = "w0"
        self.calls: list[tuple[str, object]] = []
        self.loops: list[asyncio.AbstractEventLoop | None] = []

    def _sleep(self, level: int) -> None:
        assert level in (1, 2), level
        assert self.awake, "asleep already"
        self.calls.append(("sleep", level))
        self.awake.clear()
        if level == 2:
            self.weights = None

    def _wake_up(self, tags: list[str] | None) -> None:
        assert tags is None or isinstance(tags, list)
        self.calls.append(("wake_up", tags))
        self.awake.update(tags if tags is not None else ["weights", "kv_cache"])


class LLM(Engine):
    """The blocking engine."""

    def sleep(self, level: int = 1) -> None:
        self._sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        self._wake_up(tags)


class AsyncLLM(Engine):
    """The asyncio engine: its calls are coroutines, and belong on the loop that it was made on."""

    async def sleep(self, level: int = 1) -> None:
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        self._sleep(level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        self._wake_up(tags)


class AsyncLLMEngine(AsyncLLM):
    """The name that older code has for it."""
