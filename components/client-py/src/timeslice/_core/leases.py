"""What one client holds, what it lost and was not yet told, and what it never knew it held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from timeslice._core.calls import Status


class Holding(NamedTuple):
    """Who holds what."""

    job_id: str
    group_id: str


@dataclass(frozen=True)
class HeldLease:
    """A lease as the wire names it."""

    holding: Holding
    token: int


@dataclass(frozen=True)
class Loss:
    """A lease that ended without the job giving it back."""

    lease: HeldLease
    reason: str


class LeaseBook:
    """The leases of one client. Not safe between threads: its owner has the lock."""

    def __init__(self) -> None:
        self._held: dict[Holding, int] = {}
        self._lost: dict[Holding, Loss] = {}
        self._asking: Counter[Holding] = Counter()
        self._over: dict[Holding, int] = {}
        """The highest token that is over: given back, or lost."""
        self._given_back: dict[Holding, int] = {}
        """The last token, if it was given back: what another process of the job owns can be granted here once more."""
        self._asked_again: set[Holding] = set()
        """Where an acquire has ended since without an answer: that token may have been granted."""
        self._frozen: dict[Holding, int] = {}
        """Tokens of leases that ended, and whose job waits for its next turn by itself."""
        self._releasing: Counter[HeldLease] = Counter()

    def asking(self, holding: Holding) -> None:
        """An acquire begins."""
        self._asking[holding] += 1

    def asked(self, holding: Holding, token: int) -> None:
        """An acquire ended; `token` is 0 if it brought no lease, or the server does not number them."""
        self._asking[holding] -= 1
        if not self._asking[holding]:
            del self._asking[holding]
        loss = self._lost.get(holding)
        if loss is not None and loss.lease.token < token:
            del self._lost[holding]
        if self._may_be_granted(HeldLease(holding, token)):
            self._held[holding] = token
        elif not token and holding in self._given_back:
            self._asked_again.add(holding)

    def releasing(self, holding: Holding, token: int) -> None:
        """A release begins."""
        self._releasing[HeldLease(holding, token)] += 1

    def released(self, holding: Holding, token: int) -> None:
        """A release has ended, well or badly."""
        lease = HeldLease(holding, token)
        self._releasing[lease] -= 1
        if not self._releasing[lease]:
            del self._releasing[lease]

    def given_back(self, holding: Holding, token: int) -> None:
        """The orchestrator has recorded the yield."""
        self._end(holding, token)
        if token:
            self._given_back[holding] = token

    def release_failed(self, holding: Holding, token: int, status: Status, is_overdue: bool) -> Loss | None:
        """A yield of the lease came to nothing; the loss that this shows, None if the lease may live on.

        Args:
            status: how the call ended.
            is_overdue: the session could not be renewed for longer than its time to live.
        """
        if not token:
            return None
        if status.code == "FAILED_PRECONDITION":
            reason = status.details
        elif status.code == "UNAVAILABLE" and is_overdue:
            reason = f"the session could not be renewed within its time to live, and still not: {status.details}"
        else:
            return None
        self._end(holding, token)
        return Loss(HeldLease(holding, token), reason)

    def lost(self, lease: HeldLease, reason: str) -> bool:
        """The lease is over; True if this is news. A lease that this client gave back, or never had, is none."""
        held = self._held.get(lease.holding, 0)
        early = bool(self._asking.get(lease.holding)) and lease.token > held and self._may_be_granted(lease)
        if not lease.token or (lease.token != held and not early):
            return False
        self._end(lease.holding, lease.token)
        self._lost[lease.holding] = Loss(lease, reason)
        return True

    def frozen(self, lease: HeldLease) -> bool:
        """The job was taken off the device and goes on at its next turn; True if this is news."""
        if not lease.token or self._held.get(lease.holding) != lease.token:
            return False
        news = self._frozen.get(lease.holding) != lease.token
        self._frozen[lease.holding] = lease.token
        return news

    def regranted(self, lease: HeldLease, replaces_token: int) -> None:
        """An evicted job is on the device again under a new token."""
        if self._held.get(lease.holding) == replaces_token:
            self._frozen.pop(lease.holding, None)
            self._held[lease.holding] = lease.token

    def token(self, holding: Holding) -> int:
        """The token of the lease that is held, 0 for none."""
        return self._held.get(holding, 0)

    def take_loss(self, holding: Holding) -> Loss | None:
        """The loss to tell the caller of; it is told once."""
        return self._lost.pop(holding, None)

    def held_by_job(self, job_id: str) -> list[HeldLease]:
        """Everything that the job holds through this client."""
        return [HeldLease(holding, token) for holding, token in self._held.items() if holding.job_id == job_id]

    def at_work(self, leases: Iterable[HeldLease]) -> list[HeldLease]:
        """Those whose job may be at work: not frozen until its next turn."""
        return [lease for lease in leases if self._frozen.get(lease.holding) != lease.token]

    def all_held(self) -> list[HeldLease]:
        """Everything that is held through this client."""
        return [HeldLease(holding, token) for holding, token in self._held.items()]

    def missing(self, expected: Iterable[HeldLease], listed: Iterable[HeldLease]) -> list[HeldLease]:
        """Leases of `expected` that are still held here and that the orchestrator no longer lists.

        That of a frozen job is none: nothing is listed while it waits for its next turn. Nor is one that is being given
        back: it may be gone because of that, and the answer to the release, which may still be on its way, tells.
        """
        known = set(listed)
        return [
            e
            for e in expected
            if self._held.get(e.holding) == e.token
            and e not in known
            and e not in self._releasing
            and self._frozen.get(e.holding) != e.token
        ]

    def orphans(self, listed: Iterable[HeldLease]) -> list[HeldLease]:
        """Leases that the orchestrator lists and nobody here knows: granted to an acquire that had given up."""
        return [
            lease
            for lease in listed
            if not self._asking.get(lease.holding)
            and lease.token > self._held.get(lease.holding, 0)
            and self._may_be_granted(lease)
            and (lease.token > self._over.get(lease.holding, 0) or lease.holding in self._asked_again)
        ]

    def _may_be_granted(self, lease: HeldLease) -> bool:
        """Tell whether the answer to an acquire may bring this lease."""
        return lease.token > self._over.get(lease.holding, 0) or lease.token == self._given_back.get(lease.holding)

    def _end(self, holding: Holding, token: int) -> None:
        self._given_back.pop(holding, None)
        self._asked_again.discard(holding)
        self._over[holding] = max(self._over.get(holding, 0), token)
        if self._held.get(holding, 0) <= self._over[holding]:
            self._held.pop(holding, None)
            self._frozen.pop(holding, None)
