"""The agent of llmd_agent.py as a test drives it: started, told what to do, watched, killed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import llmd_stubs

LIMIT_S = 20.0


class LlmdAgent:
    """One such process at a time; a restart keeps its port and forgets everything, as llm-d's agent does."""

    def __init__(self, stubs: Path) -> None:
        self._stubs = stubs
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, **jobs: str) -> None:
        """`jobs`: how they show at first."""
        states = [f"{job}={state}" for job, state in jobs.items()]
        program = str(Path(__file__).with_name("llmd_agent.py"))
        self._process = subprocess.Popen(
            [sys.executable, program, self.address, *states],
            env=llmd_stubs.environment(self._stubs), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        self.port = self._answers.get(timeout=LIMIT_S)["port"]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def tell(self, *command: Any) -> None:
        """Give a command, and wait until it is obeyed."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        assert self._answers.get(timeout=LIMIT_S)["event"] == "obeyed"

    def next(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next event of this kind with these fields; those before it are dropped."""
        while True:
            came = self._events.get(timeout=LIMIT_S)
            if came["event"] == event and fields.items() <= came.items():
                return came

    def events(self) -> list[dict[str, Any]]:
        """What has happened and was not asked for yet."""
        return [self._events.get_nowait() for _ in range(self._events.qsize())]

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                came = json.loads(line)
                (self._answers if came["event"] in ("listening", "obeyed") else self._events).put(came)
