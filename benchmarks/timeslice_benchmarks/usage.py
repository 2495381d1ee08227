"""What a process has used so far, as the kernel counts it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all threads of one process, or the difference of two such moments."""

    cpu_ms: float
    sleeps: int
    """How often one of its threads gave up the core to wait for something: each is a hop to whoever wakes it."""

    def since(self, before: Usage) -> Usage:
        return Usage(self.cpu_ms - before.cpu_ms, self.sleeps - before.sleeps)

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu_ms + other.cpu_ms, self.sleeps + other.sleeps)


def usage(pid: int) -> Usage:
    """So far; threads that have ended are not counted.

    Source: Linux, Documentation/scheduler/sched-stats.rst: the first field of schedstat is time on a core in ns.
    """
    total_ns = sleeps = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            total_ns += int((task / "schedstat").read_text().split()[0])
            sleeps += _field(task / "status", "voluntary_ctxt_switches")
    return Usage(total_ns / 1e6, sleeps)


def memory_mb(pid: int) -> float:
    """Resident memory now, in 10^6 bytes."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS") * 1024 / 1e6


def children(pid: int) -> list[int]:
    """The processes that this one has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise ValueError(f"{path} has no {name}")
