"""Process trees: registered after a look at /proc, and looked through for members."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from snapshot_agent_server.core.ids import ContextKey, ProcessId
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.trees import Candidate, Tree, TreeClaim, Trees, members
from snapshot_agent_server.processes import cgroups, proc
from snapshot_agent_server.processes.claims import claimed

Owner = Callable[[ProcessId], ContextKey | None]
"""The context in which a process is known, if it is."""

VARIABLE = b"TIMESLICE_TREE"
"""Its value in the environment of a tree's processes is the tree's marker."""


LOOKS = 5
"""A process that ends while /proc is read may leave a child that was not there when the reading began: read again, but
not for ever."""


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

    def find(self, trees: Trees, owner: Owner, own_pids: Set[int]) -> list[tuple[ContextKey, ProcessId]]:
        """New members of all trees, again and again until they are known: `owner` is the context of a process."""
        candidates: dict[ProcessId, Candidate] = {}
        for _ in range(LOOKS):
            if self._look(trees, owner, candidates):
                break
        mine = {os.getpid(), *own_pids}
        able = [one for one in candidates.values() if one.id.pid not in mine and os.geteuid() in (0, one.uid)]
        found = [(key, process) for process, key in members(able, trees, owner).items() if owner(process) is None]
        for _, process in found:
            self._judged.pop(process.pid, None)  # whoever asked may be about to tell of it, and another asks meanwhile
        return found

    def _look(self, trees: Trees, owner: Owner, candidates: dict[ProcessId, Candidate]) -> bool:
        """Add who comes into question. False: somebody ended meanwhile, whose children may be missing."""
        all_trees = [tree for own in trees.values() for tree in own]
        is_complete = self._in_cgroups([tree.cgroup for tree in all_trees if tree.cgroup], owner, candidates)
        rooted = tuple(tree for tree in all_trees if not tree.cgroup)
        return (not rooted or self._in_proc(rooted, owner, candidates)) and is_complete

    def _in_cgroups(self, wanted: Sequence[str], owner: Owner, candidates: dict[ProcessId, Candidate]) -> bool:
        mounted = cgroups.mounts() if wanted else ()
        is_complete = True
        for cgroup in wanted:
            folder = cgroups.folder_of(cgroup, mounted)
            for pid in cgroups.processes_in(folder) if folder is not None else ():
                facts = proc.facts(pid)
                if facts is not None and owner(facts.id) is not None:
                    continue
                person = proc.owner(pid)
                if facts is None or facts.has_ended or person is None:
                    is_complete = False
                else:
                    candidates[facts.id] = Candidate(facts.id, person[0], cgroups=cgroups.cgroups_of(pid))
        return is_complete

    def _in_proc(self, trees: tuple[Tree, ...], owner: Owner, candidates: dict[ProcessId, Candidate]) -> bool:
        """All processes that have come since the last time."""
        if trees != self._judged_for:
            self._judged, self._judged_for = {}, trees
        before, self._judged = self._judged, {}
        oldest = min(tree.root.start_time for tree in trees)
        is_complete = True
        with os.scandir("/proc") as entries:
            listed = [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdigit()]
        for pid, inode in listed:
            facts = proc.facts(pid) if before.get(pid) != inode else None
            if before.get(pid) != inode and (facts is None or facts.has_ended):
                is_complete = False
            if facts is not None and not facts.has_ended and facts.id.start_time >= oldest and owner(facts.id) is None:
                candidate = _candidate(facts)
                if candidate is None:
                    is_complete = False
                    continue
                candidates[facts.id] = candidate
                if candidate.marker is None:
                    continue  # in the middle of an exec: to be read again
            self._judged[pid] = inode
        return is_complete


def _candidate(facts: proc.ProcessFacts) -> Candidate | None:
    """What decides about a process, read so that it belongs together; None: it has ended."""
    while True:
        pid = facts.id.pid
        person, marker, parent = proc.owner(pid), marker_of(pid), proc.facts(facts.parent)
        again = proc.facts(pid)
        if again is None or again.id != facts.id or person is None:
            return None
        if again.parent == facts.parent:
            return Candidate(facts.id, person[0], parent.id if parent is not None else None, marker=marker)
        facts = again  # its parent has gone meanwhile, and it has fallen to another


def _is_ancestor(ancestor: ProcessId, process: ProcessId) -> bool:
    here = proc.facts(process.pid)
    while here is not None and here.parent > 0:
        here = proc.facts(here.parent)
        if here is not None and here.id == ancestor:
            return True
    return False


def _refused(text: str) -> Refusal:
    return Refusal(RefusalKind.BAD_PROCESS, f"tree.{text}")
