"""What clients say they hold, when their sessions come back: answered when it can be told whether they do (row 42)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.core.events import SessionRenewed
from orchestrator.core.group import Group
from orchestrator.core.sessions import Session
from orchestrator.core.timers import Timer, Timers
from orchestrator.core.types import CallId, GroupId, SessionId, Token

CLAIMS = "claims"
"""Purpose of the timer that is due when a session is answered whatever is still open."""


@dataclass(slots=True)
class _Open:
    stream: CallId
    claims: list[tuple[GroupId, Token]]
    due_s: float
    answers: int = 0


class Claims:
    """The sessions that wait for the answer to a message."""

    def __init__(
        self, groups: Mapping[GroupId, Group], timers: Timers, patience_s: float, touch: Callable[[GroupId], None]
    ) -> None:
        """`touch`: called with each group that has decided about a claim."""
        self._groups = groups
        self._touch = touch
        self._timers = timers
        self._patience_s = patience_s
        self._open: dict[SessionId, _Open] = {}

    def hear(self, event: SessionRenewed, now: float) -> None:
        """Take in a message; `settle` says when it can be answered."""
        known = self._open.get(event.session)
        if known is None or known.stream != event.stream:
            known = self._open[event.session] = _Open(event.stream, [], now + self._patience_s)
        known.claims += event.claims
        known.answers += 1

    def waiting(self) -> tuple[SessionId, ...]:
        """Return the sessions that wait for an answer."""
        return tuple(self._open)

    def settle(self, session: Session, now: float) -> int:
        """Let the groups decide what they can of a waiting session's claims, and return how many of its messages are to
        be answered now. A group that cannot tell yet is waited for at most `patience_s`.
        """
        known = self._open[session.id]
        is_there = session.stream == known.stream
        known.claims = [claim for claim in known.claims if not self._decide(session, *claim, now)]
        if known.claims and now < known.due_s and is_there:
            self._timers.set(Timer(None, CLAIMS, session.id), known.due_s)
            return 0
        self.forget(session.id)
        return known.answers if is_there else 0

    def _decide(self, session: Session, name: GroupId, token: Token, now: float) -> bool:
        group = self._groups.get(name)
        if group is None:
            return True
        is_decided = group.claim(session, token, now)
        if is_decided:
            self._touch(name)
        return is_decided

    def forget(self, session: SessionId) -> None:
        """A session waits no more."""
        if self._open.pop(session, None) is not None:
            self._timers.cancel(Timer(None, CLAIMS, session))
