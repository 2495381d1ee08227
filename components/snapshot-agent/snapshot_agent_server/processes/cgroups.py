"""Cgroups: which ones a process is in, where they are mounted, who is in them.

A cgroup is named "CONTROLLERS:PATH", the second and third field of /proc/PID/cgroup: ":/jobs/a" in version 2, and
"freezer:/jobs/a" in version 1. Source: cgroups(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a hierarchy can be seen."""

    controllers: frozenset[str]
    """Empty: version 2."""
    root: str
    """The cgroup that is at the top of the mount."""
    point: Path


def cgroups_of(pid: int, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """All that a process is in; empty if it has ended."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(line.split(":", 1)[1] for line in lines)


def mounts(proc: Path = Path("/proc")) -> tuple[Mount, ...]:
    """The hierarchies that are mounted for this process."""
    found = []
    for line in (proc / "self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_unescaped(field) for field in before.split(" ")[3:5])
            controllers = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
            found.append(Mount(controllers, root, Path(point)))
    return tuple(found)


def folder_of(cgroup: str, mounted: tuple[Mount, ...]) -> Path | None:
    """The folder of a cgroup, or None if it cannot be seen from here."""
    names, _, path = cgroup.partition(":")
    if ".." in path.split("/"):  # outside of this cgroup namespace
        return None
    wanted = frozenset(names.split(",")) if names else frozenset[str]()
    for mount in mounted:
        is_hierarchy = wanted <= mount.controllers if wanted else not mount.controllers
        below = os.path.relpath(path, mount.root)
        if is_hierarchy and not below.startswith(".."):
            folder = mount.point / below
            if (folder / "cgroup.procs").exists():
                return folder
    return None


def processes_in(folder: Path) -> set[int]:
    """The pids in a cgroup and in all below it. One that was removed has none."""
    pids: set[int] = set()
    for here, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                pids.update(int(pid) for pid in Path(here, "cgroup.procs").read_text().split())
            except OSError:  # removed, or of threads: its processes are listed above it
                continue
    return pids - {0}  # 0: a process that this pid namespace does not show


def _unescaped(field: str) -> str:
    return field.encode().decode("unicode_escape") if "\\" in field else field
