"""JSON on stdout: a message for people, fields for machines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from typing import Any

DELAY_S = 0.05
"""Longer than an operation's own part of a handoff, so that its lines are written behind it."""


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, Any] = {"t": stamp, "level": record.levelname.lower(), "msg": record.getMessage()}
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Stdout(logging.Handler):
    """Lines on stdout; while a loop runs, a little later and several at once, warnings and errors at once."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
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
        """Write what is not written yet; also called when the interpreter ends."""
        records, self._records = self._records, []
        if records:
            with contextlib.suppress(OSError):  # nobody reads it any more, which is no reason to stop
                sys.stdout.write("".join(self.format(record) + "\n" for record in records))
                sys.stdout.flush()


def set_up(level: str) -> None:
    logging.basicConfig(level=level.upper(), handlers=[Stdout()], force=True)


def transition(log: logging.Logger, level: int, message: str, **fields: object) -> None:
    """One line for one change of state."""
    if log.isEnabledFor(level):
        # Made here rather than by `log.log`, which looks for the line of source that called it: half of the cost.
        log.handle(log.makeRecord(log.name, level, "", 0, message, (), None, extra={"fields": fields}))
