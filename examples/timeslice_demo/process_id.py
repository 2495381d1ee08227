"""Which process it is, for journals of several nodes: in containers most processes have the same few numbers."""

import os
from pathlib import Path
from typing import NamedTuple


class ProcessId(NamedTuple):
    """A process as it sees itself."""

    pid_namespace: int
    """The inode of /proc/PID/ns/pid. A container that is made when another one has ended may have the same."""
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat."""


def process_id(pid: int | None = None) -> ProcessId:
    """Of this process, or of another one in the same PID namespace."""
    number = os.getpid() if pid is None else pid
    fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return ProcessId(os.stat("/proc/self/ns/pid").st_ino, number, int(fields[19]))
