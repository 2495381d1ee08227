"""Mock GPUs, target processes on them, and the agent as the process that users run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from node_under_test import Client, following

TARGET = Path(__file__).with_name("target.py")


class TargetProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def tell(self, *command: object, timeout_s: float = 20.0) -> str:
        """Give a command and wait for its answer."""
        self.give(*command)
        return await self.hear(timeout_s)

    def give(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(map(str, command)) + "\n").encode())

    async def hear(self, timeout_s: float = 20.0) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self._process.stdout.readline()
        assert line, f"target {self.pid} ended"
        return line.decode().strip()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def ended(self, timeout_s: float = 5.0) -> int:
        """The exit status, once it has ended by itself or by another's hand."""
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it has taken effect."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def cont(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class AgentProcess:
    """`python -m snapshot_agent_server`, its log lines, and its exit."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.log: list[dict[str, object]] = []
        self.ready = asyncio.Event()

    async def read_log(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            entry = json.loads(line)
            self.log.append(entry)
            if entry["msg"] == "snapshot agent ready":
                self.ready.set()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def terminate(self, timeout_s: float = 20.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()


class MockMachine:
    def __init__(self, folder: Path, gpus: str = "2x64MiB") -> None:
        libraries = Path(os.environ["GPU_MOCK_LIB_DIR"]).resolve()
        self._control = libraries / "gpu-mock"
        self.folder = folder
        folder.mkdir()
        self.address = f"unix:{folder}/a.sock"
        self.env = {
            **os.environ,
            "TIMESLICE_GPU_MOCK_DIR": str(folder / "gpus"),
            "TIMESLICE_GPU_MOCK": gpus,
            "LD_LIBRARY_PATH": str(libraries),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._targets: list[TargetProcess] = []
        self.control("create", gpus)

    def control(self, *arguments: object) -> str:
        """Run the gpu-mock command."""
        done = subprocess.run(
            [self._control, *map(str, arguments)], env=self.env, capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def inject(self, *fault: object) -> None:
        self.control("inject", *fault)

    def clear(self) -> None:
        self.control("inject", "--clear")

    @property
    def uuids(self) -> list[str]:
        return [device["uuid"] for device in json.loads(self.control("show", "--json"))["devices"]]

    def state_of(self, pid: int) -> str:
        """The driver's state of a process, by the mock's own account."""
        processes = json.loads(self.control("show", "--json"))["processes"]
        return next(process["state"] for process in processes if process["pid"] == pid)

    async def target(self, size: int | None = 8 << 20, device: int = 0) -> TargetProcess:
        """A process; with a CUDA context and memory if `size` is given."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(TARGET), env=self.env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        target = TargetProcess(process)
        self._targets.append(target)
        assert await target.hear() == "here"
        if size is not None:
            assert await target.tell("alloc", device, size) == "ok"
        return target

    @asynccontextmanager
    async def agent(self, *flags: str, groups: tuple[str, ...] = ("g=0", "h=1")) -> AsyncIterator[AgentProcess]:
        """The agent, once it says that it is ready. It may have been ended when the block is left."""
        command = [sys.executable, "-m", "snapshot_agent_server", "--listen", self.address, "--node", "n"]
        command += ["--state-dir", str(self.folder / "state"), "--restore-margin-mib", "0", "--workers", "2"]
        for group in groups:
            command += ["--group", group]
        process = await asyncio.create_subprocess_exec(*command, *flags, env=self.env, stdout=asyncio.subprocess.PIPE)
        agent = AgentProcess(process)
        reading = asyncio.create_task(agent.read_log())
        try:
            async with asyncio.timeout(20.0):
                await agent.ready.wait()
            yield agent
        finally:
            if process.returncode is None:
                await agent.kill()
            await reading
            process._transport.close()  # type: ignore[attr-defined]

    @asynccontextmanager
    async def served(self, *flags: str, groups: tuple[str, ...] = ("g=0", "h=1")) -> AsyncIterator[Client]:
        async with self.agent(*flags, groups=groups), following(self.address) as client:
            yield client

    async def close(self) -> None:
        for target in self._targets:
            if target._process.returncode is None:
                await target.kill()
            target._process._transport.close()  # type: ignore[attr-defined]
