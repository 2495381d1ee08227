"""Log lines as JSON on stdout: a message for people, fields for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOG = logging.getLogger("orchestrator")
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


def set_up(level: str) -> None:
    """Send the log of this process to stdout."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def say(message: str, /, *, level: int = logging.INFO, **fields: Any) -> None:
    """One line: what happened, and the fields to search for it by (those that are None are left out)."""
    LOG.log(level, message, extra={"fields": {k: v for k, v in fields.items() if v is not None}})


def _time(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
