"""The servers that `timeslice up` runs: started, listened to, stopped. What they say and do comes as events."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LAST_WORDS = 20
"""Lines of stderr that are kept to explain an end."""
_GRPC_NOTE = re.compile(r"[IWEF]\d{4} \d\d:")
"""grpc's own lines on stderr: for the log, not for people."""
MAX_LOG_BYTES = 10_000_000
"""Above it a log is moved aside at the next start: two starts' worth is what anyone reads."""


@dataclass(frozen=True)
class Said:
    """A line of a server: JSON of its log as a dict, or other text under "msg"."""

    child: Child
    line: dict[str, Any]
    structured: bool


@dataclass(frozen=True)
class Ended:
    """A server's process is over. `code` as in subprocess: negative for a signal."""

    child: Child
    code: int


@dataclass(frozen=True)
class Signalled:
    """`timeslice up` itself got a signal."""

    number: int


Events = queue.SimpleQueue["Said | Ended | Signalled"]


class Child:
    """One server."""

    def __init__(self, name: str, module: str, arguments: list[str], log: Path, events: Events) -> None:
        """`name` as people read it."""
        self.name, self._module, self._arguments, self._events = name, module, arguments, events
        self.log = log
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._process: subprocess.Popen[str] | None = None

    def start(self, group: int) -> None:
        """Start it in process group `group`, 0 for one of its own."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        command = [sys.executable, "-m", "timeslice.cli.child_start", str(os.getpid()), str(group), self._module]
        self._process = subprocess.Popen(
            [*command, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # grpc's own notes about connections that come and go are not for whoever watches `timeslice up`.
            env={"GRPC_VERBOSITY": "ERROR", **os.environ},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(stream, structured), name=f"{self.name} log", daemon=True)
            for stream, structured in ((self._process.stdout, True), (self._process.stderr, False))
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=self._wait, args=(readers,), name=f"{self.name} end", daemon=True).start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, if it still runs."""
        if self.is_running() and self._process is not None:
            self._process.send_signal(number)

    def _read(self, stream: IO[str], structured: bool) -> None:
        with open(self.log, "a", encoding="utf-8") as log, stream:
            for text in stream:
                log.write(text)
                log.flush()
                line = _parsed(text) if structured else None
                if line is not None:
                    self._events.put(Said(self, line, True))
                elif not _GRPC_NOTE.match(text):
                    self.last_words.append(text.rstrip("\n"))
                    self._events.put(Said(self, {"msg": text.rstrip("\n"), "level": "error"}, False))

    def _wait(self, readers: list[threading.Thread]) -> None:
        assert self._process is not None
        code = self._process.wait()
        for reader in readers:
            reader.join(1.0)  # Its last words first; but a process that it left behind may hold the pipe open.
        self._events.put(Ended(self, code))


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and "msg" in line else None
