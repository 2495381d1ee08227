"""One lease for several processes of a job: who holds it besides its owner, and who owns it next.

The session that was served first owns the lease: it is handed on when that session yields. A Yield of another one ends
only that one's share. A lease stands as long as one of its sessions lives: when its owner's ends, the oldest other one
owns it. Each comes and leaves by a record, so a restart changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from orchestrator.core import texts
from orchestrator.core.common import Common
from orchestrator.core.effects import NotifyLeaseShared
from orchestrator.core.holding import Holding
from orchestrator.core.ledger import Ledger
from orchestrator.core.sessions import Session
from orchestrator.core.site import Site
from orchestrator.core.types import Lease, RequestId, SessionId, Share
from orchestrator.core.waiters import Waiter, WaitQueue

REQUESTS_KEPT = 256
"""So many request ids are kept of each holder, and of those who left: a retry comes within minutes, not after hundreds
of further requests, and the record stays small."""


class Leaving(StrEnum):
    """Why a holder leaves a lease that stands on."""

    YIELDED = "gave its share back"
    ENDED = "has ended"
    UNANSWERED = "was never told of it"
    """Its reply did not leave, or nobody waited for it any more: its requests count as never used."""


class Shares:
    """Those who hold one group's lease together."""

    def __init__(self, common: Common, site: Site, queue: WaitQueue, ledger: Ledger) -> None:
        self._common = common
        self._site = site
        self._queue = queue
        self._ledger = ledger

    def of(self, waiters: Sequence[Waiter], owner: SessionId | None) -> tuple[Share, ...]:
        """Return the shares of those who wait besides the owner."""
        sessions = dict.fromkeys(waiter.session for waiter in waiters if waiter.session != owner)
        return tuple(
            self._share(session, [w.request for w in waiters if w.is_named and w.session == session])
            for session in sessions
        )

    def admit(self, holding: Holding, waiters: Sequence[Waiter], now: float) -> list[Waiter]:
        """Let the waiters of the holder's job hold the lease too; return those who can be answered now: of the others
        the record does not tell yet."""
        lease = holding.lease
        newcomers = self.of([waiter for waiter in waiters if waiter.session not in lease.holders], lease.session)
        if newcomers:
            holding.lease = replace(lease, shared=(*lease.shared, *newcomers))
            self._ledger.changed()
            joins = {}
            for share in newcomers:
                joins[share.session] = holding.joins[share.session] = holding.joins.get(share.session, 0) + 1

            def recorded(_: float) -> None:
                holding.recorded.update(
                    session
                    for session, join in joins.items()
                    if holding.joins[session] == join and session in holding.lease.holders
                )

            self._ledger.after_recorded(recorded, now)
        for waiter in waiters:
            if waiter.is_named:
                self.remember(holding, waiter.session, waiter.request)
        return [waiter for waiter in waiters if waiter.session in holding.recorded]

    def adopt(self, holding: Holding, session: Session) -> None:
        """Let a session hold the lease that says it shared it before the record was lost."""
        holding.lease = replace(holding.lease, shared=(*holding.lease.shared, self._share(session.id, ())))
        for known in (holding.may_know, holding.recorded, holding.announced):
            known.add(session.id)
        session.groups.add(holding.lease.group)
        self._ledger.changed()

    def remember(self, holding: Holding, session: SessionId | None, request: RequestId) -> None:
        """Note that this request of a holder is answered with the lease."""
        lease = holding.lease
        if request in lease.all_requests():
            return
        if session == lease.session:
            holding.lease = replace(lease, requests=_last(lease.requests, [request]))
        else:
            holding.lease = replace(lease, shared=tuple(
                replace(share, requests=_last(share.requests, [request])) if share.session == session else share
                for share in lease.shared))
        self._ledger.changed()

    def announce(self, holding: Holding, answered: Iterable[SessionId | None], now: float) -> None:
        """Tell the owner who shares its lease now, and those who do whose it is."""
        lease = holding.lease
        newcomers = [
            share for share in lease.shared if share.session in answered and share.session not in holding.announced
        ]
        if not newcomers:
            return
        holding.announced.update(share.session for share in newcomers)
        for share in newcomers:
            self._site.publish("shared", lease.job, detail=texts.holder(share.session, share.processes))
        self._tell(holding, [lease.session], texts.lease_joined(newcomers), now)
        self._tell(holding, [share.session for share in newcomers], texts.lease_owned_by(lease), now)

    def leave(self, holding: Holding, session: SessionId | None, how: Leaving, now: float) -> bool:
        """End one holder's part in the lease; False: no other holds it, so it must end (nothing was changed)."""
        lease = holding.lease
        others = [share for share in lease.shared if share.session != session]
        is_owner = session == lease.session
        if is_owner and not others:
            return False
        was_announced = session in holding.announced
        if is_owner:
            heir = next((share for share in others if share.session is not None), others[0])
            others.remove(heir)
            requests, words = lease.requests, texts.lease_inherited(lease, how, heir)
            holding.lease = replace(
                lease,
                session=heir.session,
                requests=heir.requests,
                ttl_s=heir.ttl_s,
                processes=heir.processes,
                shared=tuple(others),
            )
            holding.unseen_since_s, holding.sessionless_since_s = None, now
            self._site.publish("owner_changed", lease.job, detail=words)
        else:
            [share] = [share for share in lease.shared if share.session == session]
            requests, words = share.requests, texts.lease_left(share, how)
            holding.lease = replace(lease, shared=tuple(others))
        if how is not Leaving.UNANSWERED:
            holding.lease = replace(holding.lease, returned=_last(lease.returned, requests))
        for call in holding.forget(session):
            self._common.calls.pop(call, None)
        self._ledger.changed()
        if is_owner:
            self._tell(holding, holding.lease.holders, words, now)
        elif was_announced:
            self._site.publish("share_ended", lease.job, detail=words)
            self._tell(holding, [lease.session], words, now)
        return True

    def forget_strangers(self, holding: Holding, now: float) -> None:
        """Take out who holds the lease by the record, never heard of it, and waits for it no more."""
        for session in holding.lease.holders if holding.lease.shared else ():
            if not self.is_expected(holding, session, now):
                self.leave(holding, session, Leaving.UNANSWERED, now)

    def is_expected(self, holding: Holding, session: SessionId | None, now: float) -> bool:
        """Tell whether a holder was answered, or waits to be."""
        return holding.is_known_to(session) or any(
            waiter.session == session and self._queue.is_expected(waiter, now)
            for waiter in self._queue.of_job(holding.lease.job)
        )

    def _share(self, session: SessionId | None, requests: Sequence[RequestId]) -> Share:
        known = self._common.session(session)
        return Share(
            session=session,
            requests=_last((), requests),
            ttl_s=known.ttl_s if known is not None else self._common.settings.session_ttl_s,
            processes=known.processes if known is not None else (),
        )

    def _tell(self, holding: Holding, sessions: Iterable[SessionId | None], words: str, now: float) -> None:
        """Tell these of the lease as it is when that is durable; who has no stream then learns it when it opens one."""
        told = tuple(sessions)

        def tell(_: float) -> None:
            for session in map(self._common.session, told):
                if session is not None and session.stream is not None and self._is_held_by(holding, session.id):
                    self._common.out.append(
                        NotifyLeaseShared(session.stream, session.id, holding.lease, words)
                    )

        self._ledger.after_recorded(tell, now)

    @staticmethod
    def _is_held_by(holding: Holding, session: SessionId) -> bool:
        return not holding.is_over and session in holding.lease.holders


def _last(requests: tuple[RequestId, ...], more: Sequence[RequestId]) -> tuple[RequestId, ...]:
    return (*requests, *more)[-REQUESTS_KEPT:]


def held_by(holding: Holding | None, session: SessionId) -> Lease | None:
    """Return the lease if this session holds it, as far as it may know; None: it does not."""
    if holding is None or not holding.is_claimed or session not in holding.recorded:
        return None
    return holding.lease if session in holding.lease.holders else None
