"""Calling the user's functions, away from the task that keeps the session."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from timeslice._aio.changed import Changed
from timeslice._core.telling import Event, Listeners, slow, still_running

logger = logging.getLogger("timeslice")

_calling: contextvars.ContextVar[_Teller | None] = contextvars.ContextVar("timeslice callback", default=None)
"""Whose function this code runs in, threads and tasks that the function starts among it."""


class Callbacks:
    """A task for each of the user's functions, from its first event on; events of one kind in order, one by one."""

    def __init__(self, listeners: Listeners, clock: Callable[[], float]) -> None:
        self._listeners, self._clock = listeners, clock
        self._tellers: dict[str, _Teller] = {}

    def tell(self, event: Event) -> None:
        """Have the event's function called, once, and do not wait for that."""
        found = self._listeners.find(event)
        if found is None:
            return
        name, function = found
        if name not in self._tellers:
            self._tellers[name] = _Teller(name, function, self._clock)
        self._tellers[name].put(event)

    async def close(self, timeout_s: float) -> None:
        """Wait so long, for each function, until it was called for every event; then cancel what still runs."""
        for teller in self._tellers.values():
            await teller.close(timeout_s)


class _Teller:
    def __init__(self, name: str, function: Callable[[Any], Any], clock: Callable[[], float]) -> None:
        self._name, self._function, self._clock = name, function, clock
        self._changed = Changed()
        self._events: deque[Event] = deque()
        self._since: float | None = None
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"timeslice {name}")

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._changed.notify_all()
        if self._since is not None:
            text = still_running(self._name, self._clock() - self._since, len(self._events))
            if text:
                logger.warning(text)

    async def close(self, timeout_s: float) -> None:
        self._closed = True
        self._changed.notify_all()
        if _calling.get() is self:  # A callback may close the client.
            return
        await asyncio.wait({self._task}, timeout=timeout_s)
        if self._task.cancel():
            await asyncio.wait({self._task}, timeout=timeout_s)

    async def _run(self) -> None:
        _calling.set(self)
        while True:
            await self._changed.wait_for(lambda: self._events or self._closed)
            if not self._events:
                return
            event = self._events.popleft()
            self._since = started = self._clock()
            try:
                await self._call(event)
            except Exception:
                logger.exception("%s raised on %s", self._name, event)
            self._since = None
            if text := slow(self._name, self._clock() - started):
                logger.warning(text)

    async def _call(self, event: Event) -> None:
        if inspect.iscoroutinefunction(self._function):
            await self._function(event)
            return
        # In a thread: a plain function may block, and the loop renews the session.
        result = await asyncio.to_thread(self._function, event)
        if inspect.isawaitable(result):
            await result
