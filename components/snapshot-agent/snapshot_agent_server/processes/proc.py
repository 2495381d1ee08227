"""What /proc says of a process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from snapshot_agent_server.core.ids import ProcessId

ENDED_STATES = "ZX"
STOPPED_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger"}


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    id: ProcessId
    parent: int
    """The pid of its parent now: another one than at first, if that one has ended."""
    state: str
    """The letter of /proc/PID/stat: R, S, D, Z, T, t, X, I."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def stopped(self) -> str:
        """How it is stopped, or empty. A driver call to a stopped process hangs."""
        return STOPPED_STATES.get(self.state, "")


def facts(pid: int, proc: Path = Path("/proc")) -> ProcessFacts | None:
    """The process that has this pid now, or None. A zombie counts as a process that `has_ended`.

    Source: proc_pid_stat(5); the command's name may hold spaces and brackets, so fields count from the last ")".
    """
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        stat = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessFacts(ProcessId(pid, int(fields[19])), int(fields[1]), fields[0].decode())


def owner(pid: int, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """The real uid of a process, and the pid of the process that it is a thread of (itself, if it is none)."""
    found = {}
    try:
        for line in (proc / str(pid) / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Uid", "Tgid"):
                found[name] = int(value.split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return found["Uid"], found["Tgid"]


def inner_pid(pid: int, proc: Path = Path("/proc")) -> int | None:
    """What a process calls itself, in its own PID namespace; None: it has ended. Source: proc_pid_status(5), NSpid."""
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    named = [line for line in lines if line.startswith("NSpid:")]
    return int(named[-1].split()[-1]) if named else pid


def is_same(process: ProcessId, proc: Path = Path("/proc")) -> bool:
    """The process lives, and is that one and not a later one with its pid."""
    found = facts(process.pid, proc)
    return found is not None and found.id == process and not found.has_ended


def can_be_asked(process: ProcessId, proc: Path = Path("/proc")) -> bool:
    """It lives, is that one, and is not stopped: a driver call to it does not hang for that."""
    found = facts(process.pid, proc)
    return found is not None and found.id == process and not found.has_ended and not found.stopped


def boot_id(proc: Path = Path("/proc")) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def is_frozen(pid: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Its cgroup is frozen, so that a driver call to it hangs.

    Source: cgroup v2, cgroup.events; cgroup v1, freezer.state. No such file: not frozen.
    """
    try:
        fd = os.open(f"{proc}/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return False
    try:
        lines = os.read(fd, 1 << 16).decode(errors="surrogateescape").splitlines()
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" and _contains(f"{cgroups}{path}/cgroup.events", "frozen 1"):
            return True
        if "freezer" in controllers.split(",") and _contains(f"{cgroups}/freezer{path}/freezer.state", "FROZEN"):
            return True
    return False


def _contains(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return text in os.read(fd, 4096).decode()
    finally:
        os.close(fd)
