"""A real orchestrator process for tests: started, watched by its log lines, killed by its pid."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

START_TIMEOUT_S = 30.0


class OrchestratorProcess:
    """`python -m orchestrator` with these arguments; `lines` holds what it logged so far."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str] | None = None, first_path: str = ""
    ) -> None:
        self.arguments = list(arguments)
        self.env = dict(env or {})
        self.first_path = first_path
        self.lines: list[dict[str, Any]] = []
        self.process: asyncio.subprocess.Process | None = None
        self._grew = asyncio.Condition()
        self._readers: list[asyncio.Task[None]] = []
        self.errors = ""
        self.text = ""
        self._is_silent = False
        self._is_json = True

    async def start(self) -> None:
        """Start it and wait until it serves."""
        await self.spawn()
        await self.logged(lambda line: line["msg"] == "orchestrator ready")

    async def spawn(self) -> None:
        """Start it and do not wait."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIMESLICE_")}
        paths = os.pathsep.join(p for p in [self.first_path, *sys.path] if p)
        self.lines, self.errors, self._is_silent = [], "", False
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "orchestrator", *self.arguments,
            env={**inherited, "PYTHONPATH": paths, **self.env},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        self._readers = [
            asyncio.create_task(self._read_lines(), name="orchestrator stdout"),
            asyncio.create_task(self._read_errors(), name="orchestrator stderr"),
        ]

    async def spawn_for_text(self) -> None:
        """Start it to write text for people, not log lines, into `text`."""
        self._is_json = False
        await self.spawn()

    async def logged(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a line was logged, since the last start, that is wanted."""
        async with asyncio.timeout(timeout_s), self._grew:
            await self._grew.wait_for(lambda: any(map(wanted, self.lines)) or self._is_silent)
        assert any(map(wanted, self.lines)), f"it ended without that line: {self.lines} {self.errors}"

    async def ended(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Wait for its end by itself; its exit status."""
        assert self.process is not None
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*self._readers)
            return await self.process.wait()

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()

    async def terminate(self) -> int:
        """SIGTERM; its exit status."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def _read_lines(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._grew:
                if self._is_json:
                    self.lines.append(json.loads(line))
                else:
                    self.text += line.decode()
                self._grew.notify_all()
        async with self._grew:
            self._is_silent = True
            self._grew.notify_all()

    async def _read_errors(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.errors += line.decode()


