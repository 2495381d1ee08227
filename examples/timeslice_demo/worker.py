"""A job's sampler and trainer as its controller sees them: child processes that do one phase after the other.

Between the two goes, over a socket: first a WorkerSpec, then (name of a method of the role, arguments) for each phase,
answered by a PhaseResult or a WorkerError. The other end is worker_process.py.
"""

import contextlib
import socket
import subprocess
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from timeslice_demo.child_processes import python_command
from timeslice_demo.recorded import Pool
from timeslice_demo.roles import PhaseResult, RoleConfig

OUT_OF_MEMORY = "out_of_memory"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    pool: Pool
    role: RoleConfig
    digits: Path
    kernels: Path
    """PTX text of the kernel that keeps a device busy."""


@dataclass(frozen=True, slots=True)
class WorkerError:
    """A phase that failed, as data: kind is OUT_OF_MEMORY or OTHER."""

    kind: str
    text: str


class PhaseFailed(Exception):
    """A phase ended with an error in the worker; `.kind` as in WorkerError."""

    def __init__(self, pool: Pool, error: WorkerError) -> None:
        super().__init__(f"{pool}: {error.text}")
        self.pool, self.kind = pool, error.kind


class Worker:
    """The controller's end: a child process that has loaded its libraries and not yet touched a device."""

    def __init__(self, spec: WorkerSpec) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = python_command("timeslice_demo.worker_process", str(theirs.fileno()))
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._channel = Connection(ours.detach())
        self._pool = spec.pool
        self._channel.send(spec)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, method: str, *arguments: Any) -> None:
        """Begin a phase; its result is to be taken by `result`."""
        try:
            self._channel.send((method, arguments))
        except BrokenPipeError:
            raise self._ended() from None

    def result(self) -> PhaseResult:
        """Wait for the phase that was started.

        Raises:
            PhaseFailed: it failed, or the process ended.
        """
        try:
            answer = self._channel.recv()
        except (EOFError, ConnectionResetError):
            raise self._ended() from None
        if isinstance(answer, WorkerError):
            raise PhaseFailed(self._pool, answer)
        assert isinstance(answer, PhaseResult)
        return answer

    def call(self, method: str, *arguments: Any) -> PhaseResult:
        self.start(method, *arguments)
        return self.result()

    def close(self) -> None:
        """End the process and wait for it. A second call does nothing."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
            return
        self._process.kill()
        self._process.wait()

    def _ended(self) -> PhaseFailed:
        return PhaseFailed(self._pool, WorkerError(OTHER, f"the process ended with status {self._process.wait()}"))
