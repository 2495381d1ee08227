"""The lease that stands in a group, how far its grant has come, and who was told of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.types import CallId, Lease, SessionId


@dataclass(slots=True)
class Holding:
    """The current lease. A session of None stands for all clients of the job that have none."""

    lease: Lease
    since_s: float
    has_restored: bool
    discarded_tags: tuple[str, ...] = ()
    """What its context lacks since it was saved, and must be filled again; known when it is in place."""
    is_intended: bool = False
    """A recorded intent names its job and its token: its context may be unlocked before the grant is recorded."""
    is_recorded: bool = False
    is_placed: bool = False
    """Its context is in place and unlocked: replies may leave."""
    is_claimed: bool = False
    """Somebody was answered with it (or may have been, before a restart)."""
    is_over: bool = False
    may_know: set[SessionId | None] = field(default_factory=set)
    """Holders from before a restart: nobody can tell whether they were answered then."""
    calls: dict[CallId, SessionId | None] = field(default_factory=dict)
    """The calls that were answered with it, and whose they are."""
    recorded: set[SessionId | None] = field(default_factory=set)
    """The holders of which the record tells: they may be answered."""
    joins: dict[SessionId | None, int] = field(default_factory=dict)
    """Counts how often each came to share it, so that a record of before it left is not taken for a later one."""
    announced: set[SessionId | None] = field(default_factory=set)
    """Those of whom the owner was told."""
    placed_s: float = 0.0
    was_seen: bool = False
    """A process of its job was seen on one of the group's nodes."""
    unseen_since_s: float | None = None
    sessionless_since_s: float = 0.0
    """Since when no session owns it, if none does."""

    def is_known_to(self, session: SessionId | None) -> bool:
        """Tell whether this holder was, or may have been, answered."""
        return session in self.may_know or session in self.calls.values()

    def forget(self, session: SessionId | None) -> list[CallId]:
        """A holder has left; return the calls that it was answered by."""
        for known in (self.may_know, self.recorded, self.announced):
            known.discard(session)
        answered = [call for call, whose in self.calls.items() if whose == session]
        for call in answered:
            del self.calls[call]
        return answered
