"""Waiting until something has come about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changed:
    """What a condition variable is between threads, for the tasks of one event loop: they need no lock."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        """Let all that wait look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, predicate: Callable[[], object], timeout_s: float | None = None) -> None:
        """Wait until the predicate is true, for `timeout_s` at most."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not predicate():
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return
            await self.wait(left)

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for the next `notify_all`, for `timeout_s` at most."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)
