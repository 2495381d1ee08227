"""What must be true after every event. The cheap part runs in production; the whole of it in the property tests."""

from __future__ import annotations

from orchestrator.core.group import Group
from orchestrator.core.switch import Phase
from orchestrator.core.types import ContextState


class InvariantBroken(AssertionError):
    """The core is not in a state that the protocol allows: a defect; nothing further may be done with it."""


def check_group(group: Group) -> None:
    """Raise InvariantBroken if a group's memory contradicts itself. O(nodes and contexts of the group)."""
    holding, switch, site = group.holding, group.switch, group.site
    _require(holding is None or switch is None, group, "a lease and a switch at once")
    if holding is not None:
        _require(0 < holding.lease.token <= group.last_token, group, "a lease with a token that was never given out")
        _require(not holding.calls or holding.is_placed, group, "a grant left before its context was in place")
        _require(not holding.is_placed or holding.is_recorded, group, "a grant is in place before its record")
        holders = holding.lease.holders
        _require(len(set(holders)) == len(holders), group, "a session holds the lease twice")
        _require(holding.recorded <= set(holders), group, "one that left counts as a holder")
        _require(set(holding.calls.values()) <= holding.recorded, group, "a share left before it was recorded")
        _require(holding.lease.job not in site.faults, group, "a faulted job holds the lease")
    if switch is not None:
        _require(switch.token <= group.last_token, group, "a switch with a token that was never given out")
        _require(
            switch.phase is not Phase.BLOCKED or switch.blocked is not None, group, "Blocked without saying by whom"
        )
    _require(site.token <= group.last_token, group, "agents were sent a token that was never given out")


def check_exclusion(group: Group) -> None:
    """Raise InvariantBroken if, by what the agents last said, two jobs could touch the group's accelerators."""
    site = group.site
    free = {
        job
        for node in site.nodes
        for job, context in node.contexts(group.id).items()
        if context.state is ContextState.RUNNING and not context.locked and job not in group.intruders
        and context.can_be_locked
    }
    if group.holding is not None and group.holding.is_placed:
        _require(free <= {group.holding.lease.job}, group, f"unlocked without the lease: {sorted(free)}")
    else:
        _require(len(free) <= 1, group, f"several jobs unlocked: {sorted(free)}")


def _require(is_true: bool, group: Group, what: str) -> None:
    if not is_true:
        raise InvariantBroken(f"group {group.id!r}: {what}")
