"""What becomes of a holder that cannot be saved: one policy for all groups, and others for some."""

from dataclasses import dataclass
from typing import Self

from orchestrator.core.types import OnUnsaveable


@dataclass(frozen=True, slots=True)
class UnsaveablePolicies:
    """As --on-unsaveable [GROUP=]POLICY states them."""

    default: OnUnsaveable = OnUnsaveable.WAIT
    by_group: tuple[tuple[str, OnUnsaveable], ...] = ()

    def of(self, group: str) -> OnUnsaveable:
        """The policy of a group."""
        return dict(self.by_group).get(group, self.default)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "POLICY", "GROUP=POLICY", or several of them with commas. ValueError: the end of a sentence about it."""
        chosen: dict[str, OnUnsaveable] = {}
        for part in text.split(","):
            group, equals, policy = part.rpartition("=")
            if policy not in list(OnUnsaveable) or (equals and not group):
                raise ValueError(f"is {part!r}; give {' or '.join(OnUnsaveable)}, alone or as GROUP=POLICY")
            wanted = OnUnsaveable(policy)
            if chosen.setdefault(group, wanted) is not wanted:
                whose = f"group {group!r}" if group else "all groups"
                raise ValueError(f"says both {chosen[group]} and {policy} for {whose}; give one")
        default = chosen.pop("", OnUnsaveable.WAIT)
        return cls(default, tuple(chosen.items()))

    def __str__(self) -> str:
        return ",".join([self.default, *(f"{group}={policy}" for group, policy in self.by_group)])


WAIT_EVERYWHERE = UnsaveablePolicies()
