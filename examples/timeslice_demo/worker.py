"""A sampler or trainer process: it does what its job's controller says, one phase at a time, and ends when the
controller does.

Usage: python -m timeslice_demo.worker DESCRIPTOR, where DESCRIPTOR is an inherited socket. The first message is a
WorkerSpec; each further one is (name of a method of the role, arguments), answered by a PhaseResult or a WorkerError.
"""

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from timeslice_demo.child_processes import die_with_parent, python_command
from timeslice_demo.digits import read_digits
from timeslice_demo.recorded import Pool
from timeslice_demo.roles import ROLES, PhaseResult, RoleConfig

OUT_OF_MEMORY = "out_of_memory"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    pool: Pool
    role: RoleConfig
    digits: Path


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
            command = python_command("timeslice_demo.worker", str(theirs.fileno()))
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


def _serve(channel: Connection) -> None:
    from timeslice_demo.device import DeviceError, OutOfDeviceMemory

    spec: WorkerSpec = channel.recv()
    role = ROLES[spec.pool](spec.role, read_digits(spec.digits))
    channel.send(PhaseResult([]))  # ready
    while True:
        try:
            method, arguments = channel.recv()
        except EOFError:
            return
        try:
            answer: PhaseResult | WorkerError = getattr(role, method)(*arguments)
        except OutOfDeviceMemory as error:
            answer = WorkerError(OUT_OF_MEMORY, str(error))
        except DeviceError as error:
            answer = WorkerError(OTHER, str(error))
        try:
            channel.send(answer)
        except BrokenPipeError:
            return


if __name__ == "__main__":
    die_with_parent()
    _serve(Connection(int(sys.argv[1])))
    os._exit(0)  # nothing is left to be put in order: device memory goes with the process, as in a job that is done
