"""Fencing: the highest token of each group and the highest leader epoch. Lower ones change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from snapshot_agent_server.core.ids import GroupId
from snapshot_agent_server.core.refusals import Refusal, RefusalKind


@dataclass(slots=True)
class Fences:
    allow_unfenced: bool = False
    epoch: int = 0
    tokens: dict[GroupId, int] = field(default_factory=dict)

    def check_epoch(self, epoch: int) -> Refusal | None:
        if 0 < epoch < self.epoch:
            return Refusal(
                RefusalKind.STALE,
                f"leader epoch {epoch} is over (this node has seen {self.epoch}); nothing was changed."
                " Another orchestrator leads: stop, or become leader again.",
            )
        return None

    def check(self, groups: Iterable[GroupId], token: int, epoch: int) -> Refusal | None:
        """The reason why a call that changes something is refused, or None. Changes nothing."""
        stale = self.check_epoch(epoch)
        if stale is not None:
            return stale
        if epoch == 0 and self.epoch > 0 and not self.allow_unfenced:
            return Refusal(
                RefusalKind.STALE,
                f"the call names no leader epoch, and this node has seen epoch {self.epoch}; nothing was changed."
                " Send leader_epoch, or start the agent with --allow-unfenced.",
            )
        for group in groups:
            seen = self.tokens.get(group, 0)
            if 0 < token < seen:
                return Refusal(
                    RefusalKind.STALE,
                    f"fencing token {token} of group {group!r} is over (this node has seen {seen});"
                    " nothing was changed. Read the group's lease again.",
                )
            if token == 0 and seen > 0 and not self.allow_unfenced:
                return Refusal(
                    RefusalKind.STALE,
                    f"the call names no fencing token, and group {group!r} has seen token {seen}; nothing was changed."
                    " Send fencing_token, or start the agent with --allow-unfenced.",
                )
        return None

    def raise_to(self, groups: Iterable[GroupId], token: int, epoch: int) -> bool:
        """Keep what is higher; True if anything rose."""
        rose = epoch > self.epoch
        self.epoch = max(self.epoch, epoch)
        for group in groups:
            if token > self.tokens.get(group, 0):
                self.tokens[group] = token
                rose = True
        return rose
