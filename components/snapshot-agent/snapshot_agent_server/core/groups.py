"""Which accelerators belong together on this node, now: fixed at the start, or as a cluster says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from snapshot_agent_server.core.ids import AcceleratorId, GroupId


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """What somebody says that a group has on this node."""

    group: GroupId
    accelerators: tuple[AcceleratorId, ...]
    unknown: tuple[str, ...] = ()
    """Accelerators that it names and the node has not."""


@dataclass(slots=True)
class Groups:
    """An accelerator is in at most one group: it stays with the one that has it, whoever else claims it.

    A group that is no longer claimed stays, with what nobody else claims, as long as it is in use: what is saved can be
    restored, and what runs can be stopped.
    """

    _members: dict[GroupId, tuple[AcceleratorId, ...]] = field(default_factory=dict)
    _claims: tuple[GroupClaim, ...] = ()
    _leaving: set[GroupId] = field(default_factory=set)
    _of: dict[AcceleratorId, GroupId] = field(default_factory=dict)

    @classmethod
    def fixed(cls, groups: Mapping[GroupId, tuple[AcceleratorId, ...]]) -> Groups:
        made = cls()
        made.change([GroupClaim(group, members) for group, members in groups.items()], ())
        return made

    def __iter__(self) -> Iterator[GroupId]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, group: object) -> bool:
        return group in self._members

    def members(self, group: GroupId) -> tuple[AcceleratorId, ...]:
        return self._members.get(group, ())

    def of(self, accelerator: AcceleratorId) -> GroupId | None:
        return self._of.get(accelerator)

    def claiming(self, accelerator: AcceleratorId) -> tuple[GroupId, ...]:
        """All groups that claim it, the one that has it first."""
        owner = self.of(accelerator)
        others = [c.group for c in self._claims if accelerator in c.accelerators and c.group != owner]
        return (*([owner] if owner is not None else []), *others)

    def is_leaving(self, group: GroupId) -> bool:
        """Nobody claims it any more, and it is in use still."""
        return group in self._leaving

    @property
    def present(self) -> Mapping[GroupId, tuple[AcceleratorId, ...]]:
        """Those that are claimed, with the accelerators that they have."""
        return {group: members for group, members in self._members.items() if group not in self._leaving}

    def change(self, claims: Sequence[GroupClaim], in_use: Collection[GroupId]) -> bool:
        """From now on these are claimed, the first first. False: nothing changes by that."""
        before = (dict(self._members), set(self._leaving), self._claims)
        claimed = {claim.group: claim for claim in claims}
        owner = {
            accelerator: group
            for group, members in self._members.items()
            for accelerator in members
            if group in claimed and accelerator in claimed[group].accelerators
        }
        for claim in claims:
            for accelerator in claim.accelerators:
                owner.setdefault(accelerator, claim.group)
        left = {group: members for group, members in self._members.items() if group not in claimed and group in in_use}
        for group, members in left.items():
            for accelerator in members:
                owner.setdefault(accelerator, group)
        self._members = {
            **{g: tuple(a for a in c.accelerators if owner[a] == g) for g, c in claimed.items()},
            **{g: tuple(a for a in members if owner[a] == g) for g, members in left.items()},
        }
        self._members = {g: members for g, members in self._members.items() if members or g in left or g in in_use}
        self._leaving = set(left)
        self._claims = tuple(claims)
        self._of = owner
        return before != (self._members, self._leaving, self._claims)

    def unused(self, group: GroupId) -> bool:
        """The last that was in use of a group has gone. True: the group goes with it."""
        if group not in self._leaving:
            return False
        return self.change(self._claims, self._leaving - {group})

    def problems(self) -> list[str]:
        """For people: what claims cannot have, and why."""
        found = []
        for claim in self._claims:
            if claim.unknown:
                named = ", ".join(claim.unknown)
                found.append(f"group {claim.group!r} names accelerators that this node does not have: {named}")
            taken: dict[GroupId, list[str]] = {}
            for accelerator in claim.accelerators:
                if self._of[accelerator] != claim.group:
                    taken.setdefault(self._of[accelerator], []).append(accelerator)
            for other, accelerators in taken.items():
                found.append(
                    f"group {claim.group!r} does not get {', '.join(accelerators)}, which group {other!r} has: an"
                    " accelerator belongs to one group, so name each in one group only"
                )
            if not claim.accelerators and not claim.unknown:
                found.append(f"group {claim.group!r} has no accelerators here: the node has none")
        return found
