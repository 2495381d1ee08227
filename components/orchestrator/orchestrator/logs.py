"""Log lines as JSON on stdout: a message for people, fields for machines."""

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

LOG = logging.getLogger("orchestrator")
DELAY_S = 0.05
"""Longer than a handoff takes, so that its lines are written behind it; short for who reads along."""
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode
_stdout: "Stdout | None" = None
LEVELS = ("debug", "info", "warning", "error")


class JsonLines(logging.Formatter):
    """{"t": ..., "level": ..., "msg": ..., and the fields of the record}; level info is left out, being the rule."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        return _json_line(record.created, record.levelno, record.getMessage(), fields)


class Stdout(logging.Handler):
    """Lines on stdout; while a loop runs, a little later and several at once, warnings and errors at once.

    Making and writing a line costs a tenth of a millisecond, which a handoff need not wait for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._lines: list[Callable[[], str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.take(lambda: self.format(record), record.levelno)

    def take(self, line: Callable[[], str], level: int) -> None:
        """Write what `line` makes, when it is time to."""
        self._lines.append(line)
        if level >= logging.WARNING:
            self.flush()
        if len(self._lines) != 1:
            return
        try:
            asyncio.get_running_loop().call_later(DELAY_S, self.flush)
        except RuntimeError:  # no loop runs
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            with contextlib.suppress(OSError):  # nobody reads it any more, which is no reason to stop
                sys.stdout.write("".join(line() + "\n" for line in lines))
                sys.stdout.flush()


def set_up(level: str) -> None:
    """Send the log of this process to stdout."""
    global _stdout
    root = logging.getLogger()
    _stdout = Stdout()
    root.handlers[:] = [_stdout]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def flush() -> None:
    """Write what is not written yet."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def say(message: str | Callable[[], str], /, *, level: int = logging.INFO, **fields: Any) -> None:
    """One line: what happened, and the fields to search for it by (those that are None are left out).

    A message that has to be put together first may be a function, which is called when the line is written.
    """
    if not LOG.isEnabledFor(level):
        return
    if _stdout is None or logging.getLogger().handlers != [_stdout]:  # others listen, too: a test, a debugger
        words = message() if callable(message) else message
        LOG.log(level, "%s", words, extra={"fields": _said(fields)})
        return
    created = time.time()  # no LogRecord: it would ask for the caller, the thread and the process
    _stdout.take(
        lambda: _json_line(created, level, message() if callable(message) else message, _said(fields)), level)


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _json_line(created: float, level: int, message: str, fields: Mapping[str, Any]) -> str:
    line: dict[str, Any] = {"t": _time(created)}
    if level != logging.INFO:
        line["level"] = logging.getLevelName(level).lower()
    line["msg"] = message
    line.update(fields)
    return _encode(line)


def _time(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
