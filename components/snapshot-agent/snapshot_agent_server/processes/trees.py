"""Process trees: registered after a look at /proc, and looked through for members."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from pathlib import Path

from snapshot_agent_server.core.ids import ContextKey, ProcessId
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.trees import Candidate, Tree, TreeClaim, Trees, members
from snapshot_agent_server.processes import cgroups, proc
from snapshot_agent_server.processes.claims import claimed

VARIABLE = b"TIMESLICE_TREE"
"""Its value in the environment of a tree's processes is the tree's marker."""


def planted(claim: TreeClaim, own_pids: Set[int]) -> Tree | Refusal:
    """The tree, if it is what the workload says, or why it cannot be taken."""
    root = claimed(claim.root_pid, own_pids)
    if isinstance(root, Refusal):
        return root
    found = proc.owner(root.pid)
    keeper = None
    if claim.keeper_pid is not None:
        ancestor = claimed(claim.keeper_pid, own_pids)
        if isinstance(ancestor, Refusal):
            return ancestor
        if not _is_ancestor(ancestor, root):
            return _refused(f"keeper_pid: process {ancestor.pid} is no ancestor of process {root.pid}")
        keeper = ancestor
    if claim.marker and marker_of(root.pid) != claim.marker:
        return _refused(f"marker: process {root.pid} does not have it in its environment, as {VARIABLE.decode()}")
    cgroup = ""
    if claim.controllers is not None:
        own = [one for one in cgroups.cgroups_of(root.pid) if one.startswith(f"{claim.controllers}:/")]
        cgroup = own[0] if own else ""
        agents = cgroups.cgroups_of(os.getpid())
        if not cgroup or any(one == cgroup or one.startswith(cgroup.rstrip("/") + "/") for one in agents):
            return _refused(f"cgroup_controllers: process {root.pid} is in no cgroup of its own there")
        if cgroups.folder_of(cgroup, cgroups.mounts()) is None:
            cgroup = ""  # not to be seen from here: ancestors and the marker decide
    if found is None:
        return _refused(f"root_pid: process {root.pid} has ended")
    return Tree(root, found[0], keeper, cgroup, claim.marker)


def marker_of(pid: int) -> str | None:
    """The marker in a process's environment; empty: none, or not to be read; None: no environment, as in an exec."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = VARIABLE + b"="
    found = next((entry[len(prefix) :] for entry in entries if entry.startswith(prefix)), b"")
    return found.decode(errors="replace") if entries != [b""] else None


class TreeWalker:
    """Looks for members that nobody knows yet. Cheap when little has changed: what was judged is not read again."""

    def __init__(self) -> None:
        self._judged: dict[int, int] = {}
        """Inode of /proc/PID by pid. A later process with the same pid has another one."""
        self._judged_for: tuple[Tree, ...] = ()

    def find(
        self, trees: Trees, owner: Callable[[ProcessId], ContextKey | None], own_pids: Set[int]
    ) -> list[tuple[ContextKey, ProcessId]]:
        """New members of all trees, again and again until they are known: `owner` is the context of a process."""
        candidates = {one.id: one for one in self._in_cgroups(trees, owner)}
        if any(not tree.cgroup for own in trees.values() for tree in own):
            for one in self._in_proc(trees, owner):
                candidates.setdefault(one.id, one)
        mine = {os.getpid(), *own_pids}
        able = [one for one in candidates.values() if one.id.pid not in mine and os.geteuid() in (0, one.uid)]
        found = [(key, process) for process, key in members(able, trees, owner).items() if owner(process) is None]
        for _, process in found:
            self._judged.pop(process.pid, None)  # whoever asked may be about to tell of it, and another asks meanwhile
        return found

    def _in_cgroups(self, trees: Trees, owner: Callable[[ProcessId], ContextKey | None]) -> list[Candidate]:
        found = []
        mounted = cgroups.mounts() if any(tree.cgroup for own in trees.values() for tree in own) else ()
        for tree in (tree for own in trees.values() for tree in own if tree.cgroup):
            folder = cgroups.folder_of(tree.cgroup, mounted)
            for pid in cgroups.processes_in(folder) if folder is not None else ():
                facts = proc.facts(pid)
                if facts is None or facts.has_ended or owner(facts.id) is not None:
                    continue
                person = proc.owner(pid)
                if person is not None:
                    found.append(Candidate(facts.id, person[0], cgroups=cgroups.cgroups_of(pid)))
        return found

    def _in_proc(self, trees: Trees, owner: Callable[[ProcessId], ContextKey | None]) -> list[Candidate]:
        """All processes that have come since the last time."""
        rooted = tuple(tree for own in trees.values() for tree in own if not tree.cgroup)
        if rooted != self._judged_for:
            self._judged, self._judged_for = {}, rooted
        before, self._judged = self._judged, {}
        oldest = min(tree.root.start_time for tree in rooted)
        found = []
        with os.scandir("/proc") as entries:
            listed = [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdigit()]
        for pid, inode in listed:
            candidate = _candidate(pid, oldest, owner) if before.get(pid) != inode else None
            if candidate is not None:
                found.append(candidate)
            if candidate is None or candidate.marker is not None:
                self._judged[pid] = inode
        return found


def _candidate(pid: int, oldest: int, owner: Callable[[ProcessId], ContextKey | None]) -> Candidate | None:
    """What decides about a process, read so that it belongs together; None: it cannot be a member, or is one."""
    while True:
        facts = proc.facts(pid)
        if facts is None or facts.has_ended or facts.id.start_time < oldest or owner(facts.id) is not None:
            return None
        person, marker, parent = proc.owner(pid), marker_of(pid), proc.facts(facts.parent)
        again = proc.facts(pid)
        if again is None or again.id != facts.id or person is None:
            return None
        if again.parent == facts.parent:  # else the parent has gone meanwhile, and the child has fallen to another
            return Candidate(facts.id, person[0], parent.id if parent is not None else None, marker=marker)


def _is_ancestor(ancestor: ProcessId, process: ProcessId) -> bool:
    here = proc.facts(process.pid)
    while here is not None and here.parent > 0:
        here = proc.facts(here.parent)
        if here is not None and here.id == ancestor:
            return True
    return False


def _refused(text: str) -> Refusal:
    return Refusal(RefusalKind.BAD_PROCESS, f"tree.{text}")
