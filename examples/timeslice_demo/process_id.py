"""Which process it is, for journals of several nodes: in containers most processes have the same few numbers."""

import os
from typing import NamedTuple


class ProcessId(NamedTuple):
    """A process as it sees itself: its PID namespace (the inode of /proc/PID/ns/pid), and its number in that."""

    pid_namespace: int
    pid: int


def process_id(pid: int | None = None) -> ProcessId:
    """Of this process, or of another one in the same PID namespace."""
    return ProcessId(os.stat("/proc/self/ns/pid").st_ino, os.getpid() if pid is None else pid)
