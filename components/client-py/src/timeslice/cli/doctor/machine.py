"""What the kernel and the file system say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from timeslice._settings import SettingsError, check_private, runtime_dir, state_dir
from timeslice.cli.doctor.facts import CgroupRoom, Folder

CAP_SYS_PTRACE = 19
_KIB = 1024


def first_environment(block: bytes) -> dict[str, str]:
    """The variables with which this process began: the client has set some of grpc's since.

    `block`: /proc/PID/environ.
    """
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def has_ptrace_capability(status: str) -> bool:
    """`status`: /proc/PID/status."""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_SYS_PTRACE & 1)


def ptrace_scope(root: Path = Path("/proc/sys/kernel/yama")) -> int | None:
    try:
        return int((root / "ptrace_scope").read_text())
    except (OSError, ValueError):
        return None  # A kernel without Yama.


def memory_available_bytes(meminfo: str) -> int | None:
    """`meminfo`: /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return None


def cgroup_room(membership: str, root: Path = Path("/sys/fs/cgroup")) -> CgroupRoom | None:
    """The tightest memory limit of the cgroup and all above it. `membership`: /proc/PID/cgroup; version 2 only."""
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    if own is None:
        return None
    group = root / own.lstrip("/")
    rooms = []
    while True:
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != "max":
                rooms.append(CgroupRoom(str(group), int(limit) - int((group / "memory.current").read_text())))
        except (OSError, ValueError):
            pass  # The topmost one has no limit of its own.
        if group == root or root not in group.parents:
            return min(rooms, key=lambda room: room.free_bytes, default=None)
        group = group.parent


def runtime_folder(env: Mapping[str, str]) -> Folder:
    return _folder(runtime_dir(env), "TIMESLICE_RUNTIME_DIR")


def state_folder(env: Mapping[str, str]) -> Folder:
    return _folder(state_dir(env), "TIMESLICE_STATE_DIR")


def _folder(path: Path, setting: str) -> Folder:
    try:
        check_private(path, setting)
    except FileNotFoundError:
        parent = next(folder for folder in path.parents if folder.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return Folder(str(path), False)
        return Folder(str(path), False, f"it cannot be made in {parent}; choose another folder with {setting}")
    except SettingsError as err:
        return Folder(str(path), True, str(err))
    except OSError as err:
        return Folder(str(path), True, f"{err.strerror}; choose another folder with {setting}")
    if not os.access(path, os.W_OK | os.X_OK):
        return Folder(str(path), True, f"{path} cannot be written; run: chmod 700 {path}")
    return Folder(str(path), True)
