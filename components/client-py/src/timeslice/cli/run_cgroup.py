"""A cgroup of its own for a command, where one may be made: its processes cannot leave it, whatever becomes of them.

Source: cgroups(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from timeslice._processes import start_time

PREFIX = "timeslice-run-"
VERSION_1 = ("freezer", "pids")
"""Hierarchies of version 1 in which a group changes nothing for its members, in the order of preference."""


@dataclass(frozen=True)
class Cgroup:
    """One that was made for a command."""

    folder: Path
    controllers: str
    """As in /proc/PID/cgroup: empty for version 2."""

    @property
    def procs(self) -> Path:
        return self.folder / "cgroup.procs"

    def remove(self) -> None:
        """If nobody is left in it; else the next `make_cgroup` does."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def make_cgroup(pid: int, proc: Path = Path("/proc")) -> Cgroup | None:
    """A new cgroup below this process's own, so that all limits stay; None where that may not be done.

    `pid` is the process that makes it: with its start time it names the cgroup. Those of ended ones are removed.
    """
    for controllers, folder in _own_folders(proc):
        name = f"{PREFIX}{pid}-{start_time(pid)}"
        _remove_old(folder)
        with contextlib.suppress(OSError):
            (folder / name).mkdir()
            if os.access(folder / name / "cgroup.procs", os.W_OK):
                return Cgroup(folder / name, controllers)
            (folder / name).rmdir()
    return None


def _own_folders(proc: Path) -> list[tuple[str, Path]]:
    """This process's cgroups that come into question, version 2 first."""
    own = {}
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own[names] = path
    found = []
    for line in (proc / "self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            names = ""
        elif kind == "cgroup" and (usable := [n for n in VERSION_1 if n in options.split(",")]):
            names = next((own_names for own_names in own if usable[0] in own_names.split(",")), "none")
        else:
            continue
        if names in own and ".." not in own[names].split("/"):
            below = os.path.relpath(own[names], root)
            if not below.startswith(".."):
                found.append((names, Path(point) / below))
    return sorted(found, key=lambda one: (one[0] != "", one[0]))


def _remove_old(folder: Path) -> None:
    """Cgroups of commands that are over. One with processes in it cannot be removed."""
    for old in folder.glob(f"{PREFIX}*-*"):
        pid, _, started = old.name.removeprefix(PREFIX).partition("-")
        if pid.isdigit() and str(start_time(int(pid))) != started:
            with contextlib.suppress(OSError):
                old.rmdir()
