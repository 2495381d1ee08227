"""What is remembered of leases that are over, so that late and repeated calls get the right answer."""

from __future__ import annotations

from collections import OrderedDict

from orchestrator.core.effects import Effect, ForgetEnded
from orchestrator.core.types import EndedLease, Ending, GroupId, RequestId, Token


class Outcomes:
    """One group's ended leases by token and by request id, for a time and up to a number."""

    def __init__(self, group: GroupId, kept_s: float, kept: int, out: list[Effect]) -> None:
        self._group = group
        self._kept_s = kept_s
        self._kept = kept
        self._out = out
        self._by_token: OrderedDict[Token, tuple[float, EndedLease]] = OrderedDict()
        self._by_request: dict[RequestId, Token] = {}

    def add(self, ended: EndedLease, now: float) -> None:
        """Remember a lease that ended at `now`; older ones may be forgotten for it."""
        self._by_token[ended.token] = (now, ended)
        if ended.ending is not Ending.UNDONE:
            for request in ended.requests:
                self._by_request[request] = ended.token
        self._forget(now)

    def of_token(self, token: Token) -> EndedLease | None:
        """Return the lease that had this token; None: none is remembered."""
        entry = self._by_token.get(token)
        return entry[1] if entry else None

    def of_request(self, request: RequestId) -> EndedLease | None:
        """Return the lease that a request got and that is over; None: none is remembered."""
        token = self._by_request.get(request)
        return self.of_token(token) if token is not None else None

    def _forget(self, now: float) -> None:
        forgotten: Token | None = None
        while self._by_token:
            token, (ended_s, ended) = next(iter(self._by_token.items()))
            if len(self._by_token) <= self._kept and now < ended_s + self._kept_s:
                break
            del self._by_token[token]
            for request in ended.requests:
                if self._by_request.get(request) == token:
                    del self._by_request[request]
            forgotten = token
        if forgotten is not None:
            self._out.append(ForgetEnded(self._group, forgotten))
