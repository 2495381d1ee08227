"""The queue of one group: who waits, in which order, and which of them can be answered now."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.core.types import CallId, GroupId, JobId, ProcessRef, RequestId, SessionId, WaiterRecord


@dataclass(slots=True, kw_only=True)
class Waiter:
    """One attempt to acquire a group; calls attach to it and leave it."""

    group: GroupId
    request: RequestId
    is_named: bool
    """The client chose the request id, so it may come again with it."""
    job: JobId
    session: SessionId | None
    sequence: int
    arrived_s: float
    calls: dict[CallId, float] = field(default_factory=dict)
    """The calls that wait for its grant, and when each arrived."""
    detached_s: float | None = None
    """Since when no call is attached; None: one is."""
    is_recorded: bool = False
    priority: int = 0
    expected_hold_s: float = 0.0
    owner: str = ""

    def record(self, ttl_s: float, processes: tuple[ProcessRef, ...]) -> WaiterRecord:
        """Return what the store keeps of it."""
        return WaiterRecord(
            group=self.group,
            request=self.request,
            job=self.job,
            sequence=self.sequence,
            session=self.session,
            ttl_s=ttl_s,
            processes=processes,
            priority=self.priority,
            expected_hold_s=self.expected_hold_s,
            owner=self.owner,
        )


class WaitQueue:
    """First come, first served, among those who have a call attached. Every operation is O(log n) or better.

    A waiter between two wait slices (detached for less than `reattach_s`) is waited for; after that it keeps its place
    and is passed over until it comes back.
    """

    def __init__(self, reattach_s: float) -> None:
        self._reattach_s = reattach_s
        self._waiters: OrderedDict[RequestId, Waiter] = OrderedDict()
        self._by_job: dict[JobId, dict[RequestId, Waiter]] = {}
        self._attached: list[tuple[int, RequestId]] = []
        self._detached: dict[RequestId, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters.values())

    def get(self, request: RequestId) -> Waiter | None:
        """Return the waiter of a request; None: it does not wait."""
        return self._waiters.get(request)

    def of_job(self, job: JobId) -> list[Waiter]:
        """Return a job's waiters, the first first."""
        return list(self._by_job.get(job, {}).values())

    def add(self, waiter: Waiter) -> None:
        """Queue a waiter; its sequence is higher than that of all others."""
        self._waiters[waiter.request] = waiter
        self._by_job.setdefault(waiter.job, {})[waiter.request] = waiter
        if waiter.detached_s is None:
            heapq.heappush(self._attached, (waiter.sequence, waiter.request))
        else:
            self._detached[waiter.request] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out; it is never served later."""
        del self._waiters[waiter.request]
        self._detached.pop(waiter.request, None)
        of_job = self._by_job[waiter.job]
        del of_job[waiter.request]
        if not of_job:
            del self._by_job[waiter.job]

    def attach(self, waiter: Waiter, call: CallId, now: float) -> None:
        """Let a call wait for this waiter's grant."""
        waiter.calls[call] = now
        if waiter.detached_s is not None:
            waiter.detached_s = None
            del self._detached[waiter.request]
            heapq.heappush(self._attached, (waiter.sequence, waiter.request))

    def detach(self, waiter: Waiter, call: CallId, now: float) -> None:
        """Let a call go; the waiter keeps its place."""
        del waiter.calls[call]
        if not waiter.calls:
            waiter.detached_s = now
            self._detached[waiter.request] = waiter

    def first(self, now: float) -> Waiter | None:
        """Return who is to be served next; None: nobody can be now. May be one that is expected back soon."""
        while self._attached:
            sequence, request = self._attached[0]
            waiter = self._waiters.get(request)
            if waiter is not None and waiter.sequence == sequence and waiter.detached_s is None:
                break
            heapq.heappop(self._attached)
        best = self._waiters[self._attached[0][1]] if self._attached else None
        for waiter in self._detached.values():
            if self.is_expected(waiter, now) and (best is None or waiter.sequence < best.sequence):
                best = waiter
        return best

    def is_expected(self, waiter: Waiter, now: float) -> bool:
        """Tell whether a waiter has a call attached, or is expected to have one again within moments."""
        return waiter.detached_s is None or now < waiter.detached_s + self._reattach_s

    def has_attached(self, job: JobId) -> bool:
        """Tell whether a waiter of this job can be answered now."""
        return any(waiter.detached_s is None for waiter in self._by_job.get(job, {}).values())

    def is_wanted_by(self, job: JobId, now: float) -> bool:
        """Tell whether a waiter of this job can be served now or is expected back soon."""
        return any(self.is_expected(waiter, now) for waiter in self._by_job.get(job, {}).values())
