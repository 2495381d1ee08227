"""A job's sampler and trainer as its controller sees them: processes that do one phase after the other.

Between the two goes, over a socket: first a WorkerSpec, then (name of a method of the role, arguments) for each phase,
answered by a PhaseResult or a WorkerError. The other end is worker_process.py.
"""

import contextlib
import socket
import subprocess
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from timeslice_demo.child_processes import python_command
from timeslice_demo.digits import Digits
from timeslice_demo.process_id import ProcessId, process_id
from timeslice_demo.recorded import Pool
from timeslice_demo.roles import PhaseResult, RoleConfig

OUT_OF_MEMORY = "out_of_memory"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    pool: Pool
    role: RoleConfig
    digits: Digits


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
    """The controller's end, wherever the process is."""

    def __init__(self, pool: Pool, process: ProcessId, channel: Connection) -> None:
        self.process = process
        self._pool, self._channel = pool, channel

    def prepare(self, role: RoleConfig, digits: Digits) -> None:
        """Say what there is to know; `result` returns when the process has taken it in. It touches no device yet.

        Raises:
            PhaseFailed: the process has ended.
        """
        self._send(WorkerSpec(self._pool, role, digits))

    def start(self, method: str, *arguments: Any) -> None:
        """Begin a phase; its result is to be taken by `result`.

        Raises:
            PhaseFailed: the process has ended.
        """
        self._send((method, arguments))

    def result(self) -> PhaseResult:
        """Wait for what was started.

        Raises:
            PhaseFailed: it failed, or the process ended.
        """
        try:
            answer = self._channel.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        if isinstance(answer, WorkerError):
            raise PhaseFailed(self._pool, answer)
        assert isinstance(answer, PhaseResult)
        return answer

    def call(self, method: str, *arguments: Any) -> PhaseResult:
        self.start(method, *arguments)
        return self.result()

    def close(self) -> None:
        """The process ends with its channel. A second call does nothing."""
        self._channel.close()

    def _send(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except ConnectionError:
            raise self._ended() from None

    def _ended(self) -> PhaseFailed:
        return PhaseFailed(self._pool, WorkerError(OTHER, f"the process ended{self._status()}"))

    def _status(self) -> str:
        return ""


class ChildWorker(Worker):
    """A process of the controller's own."""

    def __init__(self, pool: Pool) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = python_command("timeslice_demo.worker_process", str(theirs.fileno()))
            self._child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        super().__init__(pool, process_id(self._child.pid), Connection(ours.detach()))

    def close(self) -> None:
        """End the process and wait for it. A second call does nothing."""
        super().close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1)
            return
        self._child.kill()
        self._child.wait()

    def _status(self) -> str:
        return f" with status {self._child.wait()}"
