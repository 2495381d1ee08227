"""Which processes' life counts as the life of a job's session: this one, and those that it registered with an agent."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number."""

    node: str
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""


def node_name(env: Mapping[str, str]) -> str:
    """This machine's name among the nodes: $TIMESLICE_NODE, else the host name."""
    return env.get("TIMESLICE_NODE") or socket.gethostname()


def start_time(pid: int) -> int | None:
    """When the process started, None if there is no such process (any more) or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The command, in parentheses, may contain anything; what follows the last one has no surprises.
    return int(stat.rpartition(")")[2].split()[19])


def identify(pids: Iterable[int], node: str) -> list[ProcessId]:
    """Those of the processes that are alive."""
    found = [(pid, start_time(pid)) for pid in pids]
    return [ProcessId(node, pid, started) for pid, started in found if started is not None]


class RegisteredProcesses:
    """What this process registered with agents, by job. Sessions of these jobs, made before or after, attest it."""

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget everything, as in a forked child: what its parent registered is not its own."""
        self._lock = threading.Lock()
        self._by_job: dict[str, dict[int, ProcessId]] = {}
        self._listeners: list[Callable[[str], None]] = []

    def add(self, job_id: str, processes: Iterable[ProcessId]) -> None:
        """Count these processes' life as the job's; tell its sessions."""
        with self._lock:
            self._by_job.setdefault(job_id, {}).update({p.pid: p for p in processes})
            listeners = list(self._listeners)
        for listener in listeners:
            listener(job_id)

    def of_job(self, job_id: str) -> list[ProcessId]:
        """The job's processes that are still alive; this one first."""
        with self._lock:
            known = list(self._by_job.get(job_id, {}).values())
        own = identify([os.getpid()], node_name(os.environ))
        return own + [p for p in known if p not in own and start_time(p.pid) == p.start_time]

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener(job_id)` whenever a job's processes change."""
        with self._lock:
            self._listeners.append(listener)

    def forget(self, listener: Callable[[str], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._listeners.remove(listener)


REGISTERED = RegisteredProcesses()
"""One per process: a registration and a session need not know of each other."""
