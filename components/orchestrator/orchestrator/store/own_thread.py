"""A thread that carries out calls one after the other, for a loop that must not wait for the disk itself."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class OwnThread:
    """One thread, until `stop`. Cheaper than an executor: one queue there, one message to the loop back."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, act: Callable[[], T]) -> asyncio.Future[T]:
        """Carry this out after all calls before it. Who cancels the future does not hear of it; it happens all the
        same."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((act, future))
        return future

    def stop(self) -> None:
        """End the thread, after all calls so far; waits for that."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            act, future = call
            result, error = None, None
            try:
                result = act()
            except Exception as failed:
                error = failed
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_tell, future, result, error)
            del call, act, future, result, error


def _tell(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
