"""Log lines as JSON on stdout: a message for people, fields for machines."""

import asyncio
import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOG = logging.getLogger("orchestrator")
DELAY_S = 0.05
"""Longer than a handoff takes, so that its lines are written behind it; short for who reads along."""
LEVELS = ("debug", "info", "warning", "error")


class JsonLines(logging.Formatter):
    """{"t": ..., "level": ..., "msg": ..., and the fields of the record}; level info is left out, being the rule."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"t": _time(record.created)}
        if record.levelno != logging.INFO:
            line["level"] = record.levelname.lower()
        line["msg"] = record.getMessage()
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class Stdout(logging.Handler):
    """Lines on stdout; while a loop runs, a little later and several at once, warnings and errors at once.

    Formatting and writing a line costs a tenth of a millisecond, which a handoff need not wait for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
        if record.levelno >= logging.WARNING:
            self.flush()
        if len(self._records) != 1:
            return
        try:
            asyncio.get_running_loop().call_later(DELAY_S, self.flush)
        except RuntimeError:  # no loop runs
            self.flush()

    def flush(self) -> None:
        records, self._records = self._records, []
        if records:
            with contextlib.suppress(OSError):  # nobody reads it any more, which is no reason to stop
                sys.stdout.write("".join(self.format(record) + "\n" for record in records))
                sys.stdout.flush()


def set_up(level: str) -> None:
    """Send the log of this process to stdout."""
    root = logging.getLogger()
    root.handlers[:] = [Stdout()]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def flush() -> None:
    """Write what is not written yet."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def say(message: str, /, *, level: int = logging.INFO, **fields: Any) -> None:
    """One line: what happened, and the fields to search for it by (those that are None are left out)."""
    LOG.log(level, message, extra={"fields": {k: v for k, v in fields.items() if v is not None}})


def _time(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
