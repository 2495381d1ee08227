"""What signals do to `timeslice run`: the running command gets them; else they end what is being waited for."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
_Events = queue.SimpleQueue["tuple[str, Any]"]

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Interrupted(Exception):
    """A signal came when the command was not running: before, or while its group was given back."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Handlers only note a signal or pass it on. An exception raised by one could be lost in a finalizer, or leave a
    library in the middle of something; so whatever may block runs in a thread, and the main thread waits for it here.
    """

    def __init__(self) -> None:
        self._group: int | None = None
        self._waiting: _Events | None = None
        self._pending: int | None = None
        """One that came while nothing was waited for."""

    def handle(self) -> None:
        """From now on. What was ignored when this process started (nohup, a shell's background jobs) stays ignored."""
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._signalled)

    def pass_to(self, group: int | None) -> None:
        """To this process group; None: to nobody any more.

        Raises:
            Interrupted: one came before.
        """
        self._group = group
        if group is not None and self._pending is not None:
            self._group = None
            self._interrupt()

    def wait_for(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. It goes on in its thread after an interrupt.

        Raises:
            Interrupted: a signal came first.
        """
        events: _Events = queue.SimpleQueue()
        self._waiting = events
        try:
            if self._pending is not None:
                self._interrupt()
            threading.Thread(target=_do, args=(work, events), name="timeslice run", daemon=True).start()
            kind, what = events.get()
        finally:
            self._waiting = None
        if kind == "signal":
            raise Interrupted(what)
        if kind == "error":
            raise what
        result: T = what
        return result

    def _interrupt(self) -> NoReturn:
        number, self._pending = self._pending, None
        assert number is not None
        raise Interrupted(number)

    def _signalled(self, number: int, frame: object) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)
        elif self._waiting is not None:
            self._waiting.put(("signal", number))
        else:
            self._pending = number


def _do(work: Callable[[], Any], events: _Events) -> None:
    try:
        events.put(("result", work()))
    except BaseException as err:  # The main thread's to judge.
        events.put(("error", err))
