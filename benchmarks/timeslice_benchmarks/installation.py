"""A whole installation in processes of its own: orchestrator, agents (real ones on mock GPUs, or fake ones), jobs."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timeslice_benchmarks.usage import Usage, children, usage
from timeslice_demo.child_processes import Family, child_environment, python_command
from timeslice_demo.ground_truth import JournalLine
from timeslice_demo.mock_gpus import MIB, MockGpus, find_libraries
from timeslice_demo.recorded import Swap

READY_LIMIT_S = 60.0
ANSWER_LIMIT_S = 100.0
"""No block of turns takes so long."""
GROUP = "g"


class BenchmarkFailed(Exception):
    """Something that has to run for a figure does not; the text says what it said last."""


class Server:
    """A process that says in a log line that it serves, and then runs on."""

    def __init__(self, family: Family, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._errors = folder / f"{name}.stderr"
        self._ready = threading.Event()
        with self._errors.open("w", encoding="utf-8") as stderr:
            self.process: subprocess.Popen[str] = family.start(list(command), env, stderr)
        threading.Thread(target=self._follow, name=f"{name}'s log", daemon=True).start()
        if not self._ready.wait(READY_LIMIT_S) or self.process.poll() is not None:
            words = self._errors.read_text(encoding="utf-8").strip()
            raise BenchmarkFailed(f"the {name} did not start: {words or 'it said nothing'}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def usage(self) -> Usage:
        """Of the process and those that it started."""
        total = usage(self.pid)
        for child in children(self.pid):
            with contextlib.suppress(FileNotFoundError):
                total += usage(child)
        return total

    def stop(self) -> None:
        """End it in order, so that it writes what it writes at its end."""
        self.process.terminate()
        self.process.wait(READY_LIMIT_S)

    def _follow(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("w", encoding="utf-8") as kept:
            for line in self.process.stdout:
                kept.write(line)
                if line.startswith("{") and not self._ready.is_set():
                    with contextlib.suppress(ValueError):
                        if str(json.loads(line).get("msg", "")).endswith("ready"):
                            self._ready.set()
        self._ready.set()


class Job:
    """A job's process: it holds device memory, if told to, and takes turns through the client library; see job.py."""

    def __init__(self, family: Family, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self._errors = folder / f"job-{name}.stderr"
        with self._errors.open("w", encoding="utf-8") as stderr:
            self.process: subprocess.Popen[str] = family.start(list(command), env, stderr)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, name=f"answers of job {name}", daemon=True).start()

    def send(self, method: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def answer(self) -> Any:
        try:
            line = self._lines.get(timeout=ANSWER_LIMIT_S)
        except queue.Empty:
            raise BenchmarkFailed(f"job {self.name} did not answer within {ANSWER_LIMIT_S:g} s") from None
        if not line:
            self._fail()
        return json.loads(line)

    def call(self, method: str, *arguments: Any) -> Any:
        self.send(method, *arguments)
        return self.answer()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _fail(self) -> None:
        raise BenchmarkFailed(f"job {self.name} ended: {self._errors.read_text(encoding='utf-8').strip()[-2000:]}")


class Installation:
    """One run's processes and folder; all end with the context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="timeslice-bench-"))
        self._memory_folder: Path | None = None
        self.family = Family()
        self._env = child_environment({"TIMESLICE_NODE": "n0"})
        self._mocks: dict[str, MockGpus] = {}
        self.agents: dict[str, str] = {}
        """Agents' addresses by node."""
        self.orchestrator_address = f"unix:{self.folder}/orchestrator.sock"
        self.echo_address = f"unix:{self.folder}/echo.sock"

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.family.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._memory_folder is not None:
            shutil.rmtree(self._memory_folder, ignore_errors=True)

    def echo(self) -> Server:
        """A bare gRPC server on `echo_address`."""
        command = python_command("timeslice_benchmarks.echo_server", self.echo_address)
        return Server(self.family, "echo", command, self._env, self.folder)

    def agent(self, node: str = "n0", memory_mib: int = 1024, trace: Path | None = None) -> Server:
        """A real agent on one mock GPU of its own, which is group "g"; `trace`: see traced.py."""
        mock = MockGpus(find_libraries(), self._in_memory() / node, memory_mib * MIB, [Swap(0.0, 0.0)], 1.0)
        self._mocks[node] = mock
        self.agents[node] = f"unix:{self.folder}/{node}.sock"
        command = _command(
            "snapshot_agent_server", trace, "--listen", self.agents[node], "--node", node, f"--group={GROUP}=0",
            "--state-dir", str(self.folder / f"{node}-state"))
        return Server(self.family, f"agent-{node}", command, {**self._env, **mock.environment}, self.folder)

    def fake_agents(self, *nodes: str, groups: int = 1, jobs: int = 2, delay_s: float = 0.0) -> Server:
        """A process with a fake agent for each of these nodes, each of which knows `jobs` jobs, all saved, in each of
        its groups g0, g1, ..."""
        addresses = {node: f"unix:{self.folder}/{node}.sock" for node in nodes}
        self.agents.update(addresses)
        command = python_command(
            "timeslice_benchmarks.fake_agent", str(groups), str(jobs), str(delay_s), *addresses.values())
        return Server(self.family, f"agents-{nodes[0]}", command, self._env, self.folder)

    def orchestrator(self, groups: Sequence[str] = (GROUP,), trace: Path | None = None) -> Server:
        """An orchestrator with its default settings for all agents so far, each of which serves all `groups`."""
        named = ",".join(f"group={group}" for group in groups)
        agents = [word for node, address in self.agents.items() for word in ("--agent", f"{node}={address},{named}")]
        command = _command(
            "orchestrator", trace, "--listen", self.orchestrator_address, "--state-dir", str(self.folder / "state"),
            *agents)
        return Server(self.family, "orchestrator", command, self._env, self.folder)

    def job(self, name: str, size_mib: float, node: str | None = "n0", group: str = GROUP) -> Job:
        """A job with that much device memory on the node's GPU; `node` None: without a device."""
        env = dict(self._env)
        agent = ""
        if node is not None:
            env.update(self._mocks[node].environment)
            agent = self.agents[node]
        command = python_command(
            "timeslice_benchmarks.job", self.orchestrator_address, agent, name, group, str(round(size_mib * MIB)))
        return Job(self.family, name, command, env, self.folder)

    def journal(self, node: str = "n0") -> list[JournalLine]:
        """What the mock's driver did, when."""
        return self._mocks[node].journal()

    def _in_memory(self) -> Path:
        """Where the mock keeps device memory: it stands for memory, so not on a disk if there is another place."""
        if self._memory_folder is None:
            shm = Path("/dev/shm")
            self._memory_folder = Path(
                tempfile.mkdtemp(prefix="timeslice-bench-", dir=shm if shm.is_dir() else self.folder))
        return self._memory_folder


def _command(module: str, trace: Path | None, *arguments: str) -> list[str]:
    if trace is None:
        return python_command(module, *arguments)
    return python_command("timeslice_benchmarks.traced", str(trace), module, *arguments)
