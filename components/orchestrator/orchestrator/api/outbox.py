"""Messages on their way to a client that may be slow: a bounded queue that says when it was too slow."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FellBehind(Exception):
    """The client did not read fast enough; messages were dropped."""


class Outbox(Generic[T]):
    """Filled without waiting, emptied by the one task that writes to the client."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._is_behind = False

    def put(self, item: T) -> None:
        """Append, unless the client has fallen behind by more than the limit."""
        if len(self._items) >= self._limit:
            self._is_behind = True
        else:
            self._items.append(item)
        self._changed.set()

    async def next(self) -> T:
        """The next message; FellBehind when one after the last was dropped."""
        while not self._items:
            if self._is_behind:
                raise FellBehind
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()
