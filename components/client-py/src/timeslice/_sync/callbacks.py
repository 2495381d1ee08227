"""Calling the user's functions, away from the thread that keeps the session."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from timeslice._core.telling import Event, Listeners, slow, still_running

logger = logging.getLogger("timeslice")


class Callbacks:
    """A thread for each of the user's functions, from its first event on; events of one kind in order, one by one."""

    def __init__(self, listeners: Listeners, clock: Callable[[], float]) -> None:
        self._listeners, self._clock = listeners, clock
        self._lock = threading.Lock()
        self._tellers: dict[str, _Teller] = {}

    def tell(self, event: Event) -> None:
        """Have the event's function called, once, and do not wait for that."""
        found = self._listeners.find(event)
        if found is None:
            return
        name, function = found
        with self._lock:
            teller = self._tellers.get(name)
            if teller is None:
                teller = self._tellers[name] = _Teller(name, function, self._clock)
        teller.put(event)

    def close(self, timeout_s: float) -> None:
        """Wait so long, for each function, until it was called for every event; then let go of it."""
        for teller in list(self._tellers.values()):
            teller.close(timeout_s)


class _Teller:
    def __init__(self, name: str, function: Callable[[Any], Any], clock: Callable[[], float]) -> None:
        self._name, self._function, self._clock = name, function, clock
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._since: float | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"timeslice {name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            since, waiting = self._since, len(self._events)
            self._changed.notify_all()
        if since is not None and (text := still_running(self._name, self._clock() - since, waiting)):
            logger.warning(text)

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # A callback may close the client.
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._closed)
                if not self._events:
                    return
                event = self._events.popleft()
                self._since = started = self._clock()
            try:
                self._function(event)
            except BaseException:
                logger.exception("%s raised on %s", self._name, event)
            with self._changed:
                self._since = None
            if text := slow(self._name, self._clock() - started):
                logger.warning(text)
