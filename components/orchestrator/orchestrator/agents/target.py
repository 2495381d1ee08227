"""Which agent to reach, where, for which groups."""

from dataclasses import dataclass

from orchestrator.core.types import GroupId, NodeId


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """A node's agent."""

    node: NodeId
    address: str
    """"unix:PATH" or "HOST:PORT"."""
    groups: tuple[tuple[GroupId, tuple[str, ...]], ...]
    """The node's groups, and their accelerators (ids or indices) where they are configured. Used with agents that
    cannot tell by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Times of the connections to agents."""

    call_timeout_s: float = 5.0
    """Deadline of a call that only starts or asks something, and of a stream's first message."""
    poll_first_s: float = 0.02
    """First pause between two questions to an agent without Watch."""
    poll_last_s: float = 1.0
    """Longest such pause."""
    reconnect_first_s: float = 0.02
    """First pause before a connection is tried again."""
    reconnect_last_s: float = 1.0
    """Longest such pause: a node that comes back is seen within it."""


class Backoff:
    """Pauses that double from `first_s` up to `last_s`."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._next_s = first_s

    def next(self) -> float:
        """The next pause."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._last_s)
        return pause_s

    def reset(self) -> None:
        """Progress was made: start over."""
        self._next_s = self._first_s
