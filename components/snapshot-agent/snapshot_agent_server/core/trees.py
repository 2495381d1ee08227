"""Which process trees belong to contexts, and which processes are members of them. Pure: what /proc says comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from snapshot_agent_server.core.ids import ContextKey, ProcessId


@dataclass(frozen=True, slots=True)
class TreeClaim:
    """A tree as a workload describes it."""

    root_pid: int
    keeper_pid: int | None
    controllers: str | None
    """The hierarchy in which it has a cgroup of its own."""
    marker: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A command and all that it starts."""

    root: ProcessId
    uid: int
    """The root's user."""
    keeper: ProcessId | None = None
    """An ancestor of the root to which orphans of the tree fall. Not a member."""
    cgroup: str = ""
    """"CONTROLLERS:PATH" as in /proc/PID/cgroup, a cgroup that holds nothing but the tree; empty: none."""
    marker: str = ""
    """What TIMESLICE_TREE is in the members' environment."""

    def may_have(self, uid: int) -> bool:
        """Whether a process of that user may be a member. Root's commands may change their user, others' may not
        bring in anybody else's processes."""
        return self.uid in (0, uid)


Trees = Mapping[ContextKey, Sequence[Tree]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A living process that belongs to no context yet."""

    id: ProcessId
    uid: int
    parent: ProcessId | None = None
    """As it was when the process was looked at."""
    cgroups: tuple[str, ...] = ()
    """"CONTROLLERS:PATH" of each hierarchy."""
    marker: str | None = ""
    """None: not to be told yet."""


def members(
    candidates: Iterable[Candidate], trees: Trees, owner: Callable[[ProcessId], ContextKey | None]
) -> dict[ProcessId, ContextKey]:
    """Which of the candidates are members, and of which context's trees.

    The innermost cgroup decides. For trees without one it is the nearest ancestor that is a member or a keeper, and
    where that leads nowhere, for the parents have gone, the marker. `owner`: the context that a process is known in.
    """
    by_id = {candidate.id: candidate for candidate in candidates}
    rooted = [(key, tree) for key, own in trees.items() for tree in own if not tree.cgroup]
    keepers = {tree.keeper: (key, tree) for key, tree in rooted if tree.keeper is not None}
    found: dict[ProcessId, ContextKey | None] = {}

    def by_cgroup(candidate: Candidate) -> ContextKey | None:
        best: tuple[int, ContextKey] | None = None
        for key, own in trees.items():
            for tree in own:
                if _holds(tree, candidate) and (best is None or len(tree.cgroup) > best[0]):
                    best = len(tree.cgroup), key
        return best[1] if best is not None else None

    def by_marker(candidate: Candidate) -> ContextKey | None:
        for key, tree in rooted:
            is_marked = tree.marker and candidate.marker == tree.marker
            if is_marked and candidate.uid == tree.uid and _is_younger(candidate, tree):
                return key
        return None

    def by_ancestor(candidate: Candidate) -> ContextKey | None:
        parent = candidate.parent
        if parent is None:
            return None
        if parent in keepers:
            key, tree = keepers[parent]
            return key if tree.may_have(candidate.uid) and _is_younger(candidate, tree) else None
        known = owner(parent) or found.get(parent)
        own = [tree for key, tree in rooted if key == known]
        is_allowed = any(tree.may_have(candidate.uid) and _is_younger(candidate, tree) for tree in own)
        return known if is_allowed else None

    def decide(candidate: Candidate) -> None:
        """Up to where somebody is known, then down again: parents before children, however long the line is."""
        line: list[Candidate] = []
        here: Candidate | None = candidate
        while here is not None and here.id not in found:
            found[here.id] = None
            line.append(here)
            here = by_id.get(here.parent) if here.parent is not None else None
        for one in reversed(line):
            found[one.id] = by_cgroup(one) or by_ancestor(one) or by_marker(one)

    for candidate in by_id.values():
        decide(candidate)
    return {process: key for process, key in found.items() if key is not None}


def _holds(tree: Tree, candidate: Candidate) -> bool:
    """The kernel keeps members in the cgroup, and nobody else gets in without a right to it."""
    if not tree.cgroup or not tree.may_have(candidate.uid):
        return False
    return any(own == tree.cgroup or own.startswith(f"{tree.cgroup}/") for own in candidate.cgroups)


def _is_younger(candidate: Candidate, tree: Tree) -> bool:
    """Nothing that a root started is older than the root."""
    return candidate.id.start_time >= tree.root.start_time
