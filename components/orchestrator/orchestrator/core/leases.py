"""The lease of one group: granted, recorded, put in place, answered, given back, ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.core import texts
from orchestrator.core.common import Common
from orchestrator.core.effects import NotifyLeaseLost, Refuse, ReplyAcquired, ReplyYielded
from orchestrator.core.events import AcquireRequested, YieldRequested
from orchestrator.core.ledger import Ledger
from orchestrator.core.operations import OperationKind
from orchestrator.core.outcomes import Outcomes
from orchestrator.core.site import Site
from orchestrator.core.timers import Timer
from orchestrator.core.types import (
    NO_TOKEN,
    CallId,
    ContextState,
    EndedLease,
    Ending,
    GroupRecord,
    JobId,
    Lease,
    RequestId,
    Token,
)
from orchestrator.core.waiters import Waiter
from orchestrator.core.waiting import Waiting


@dataclass(slots=True)
class Holding:
    """The current lease, and how far its grant has come."""

    lease: Lease
    since_s: float
    has_restored: bool
    is_recorded: bool = False
    is_placed: bool = False
    """Its context is in place and unlocked: replies may leave."""
    is_claimed: bool = False
    """Somebody was answered with it (or may have been, before a restart)."""
    may_be_known: bool = False
    """It stood before a restart, so nobody can tell whether it was answered then."""
    calls: set[CallId] = field(default_factory=set)
    """The calls that were answered with it."""
    placed_s: float = 0.0
    was_seen: bool = False
    """A process of its job was seen on one of the group's nodes."""
    unseen_since_s: float | None = None


class Leases:
    """One group's current lease, and what is remembered of those before it."""

    def __init__(self, common: Common, site: Site, waiting: Waiting, ledger: Ledger, now: float) -> None:
        settings = common.settings
        self._common = common
        self._site = site
        self._waiting = waiting
        self._ledger = ledger
        self.outcomes = Outcomes(site.group, settings.outcome_kept_s, settings.outcomes_kept_per_group, common.out)
        self.holding: Holding | None = None
        self.last_yield: EndedLease | None = None
        """The lease that ended last, if its job gave it back and nobody was granted since."""
        self.changed_s = now
        """When a lease was last granted, put in place or ended."""
        self.held_s = 0.0
        self.handoffs_total = 0
        self._previous_holder: JobId | None = None
        self._released_s = now

    @property
    def holder(self) -> JobId | None:
        """The job that holds the group, or is about to; None: nobody."""
        return self.holding.lease.job if self.holding is not None else None

    def take_over(self, record: GroupRecord, now: float) -> None:
        """Go on where the record stands."""
        self.last_yield = record.last_yield
        self._previous_holder = record.resident
        lease = record.lease
        if lease is None:
            return
        # Whether its reply had left is not known: the job may be at work with it.
        self.holding = Holding(lease, now, has_restored=False, is_recorded=True, is_claimed=True, may_be_known=True)
        self._common.graph.hold(lease.group, lease.job)
        if lease.session is not None:
            self._common.restore_session(lease.group, lease.session, lease.job, lease.ttl_s, lease.processes, now)

    # ------------------------------------------------------------ granting

    def grant(self, job: JobId, token: Token, *, has_restored: bool, now: float) -> None:
        """Decide the lease. It is recorded, then the context is unlocked, then the replies leave."""
        site = self._site
        waiters = self._waiting.queue.of_job(job)
        owner = next((waiter for waiter in waiters if waiter.detached_s is None), waiters[0])
        session = self._common.session(owner.session)
        lease = Lease(
            group=site.group,
            job=job,
            token=token,
            session=owner.session,
            requests=tuple(waiter.request for waiter in waiters if waiter.is_named),
            accelerators=site.accelerators(),
            ttl_s=session.ttl_s if session is not None else self._common.settings.session_ttl_s,
            processes=session.processes if session is not None else (),
        )
        holding = Holding(lease, now, has_restored)
        self.holding = holding
        site.resident = job
        site.troubles.pop(job, None)
        site.blocked_since.pop(job, None)
        site.evicted.discard(job)
        self.last_yield = None
        self._common.graph.hold(site.group, job)
        self._ledger.changed()

        def recorded(_: float) -> None:
            site.use_token(token)
            holding.is_recorded = True

        self._ledger.after_recorded(recorded, now)
        self.changed_s = now

    def place(self, now: float) -> bool:
        """Unlock the holder's context wherever it is locked; then answer; tell whether the lease ended."""
        holding = self.holding
        assert holding is not None
        if not holding.is_recorded:
            return False
        is_in_place = self._unlock_holder(holding.lease.job, now)
        if holding.lease.session is None and self._is_abandoned(holding, now):
            self.end(Ending.EXPIRED, "none of the job's processes is left", now)
            return True
        if not holding.is_placed:
            if not is_in_place:
                return False
            holding.is_placed = True
            holding.placed_s = self.changed_s = now
        queue = self._waiting.queue
        attached = [waiter for waiter in queue.of_job(holding.lease.job) if waiter.detached_s is None]
        if attached:
            self._deliver(holding, attached, now)
        elif not holding.is_claimed:
            expected = [waiter for waiter in queue.of_job(holding.lease.job) if queue.is_expected(waiter, now)]
            if not expected:
                self.end(Ending.UNDONE, "nobody waits for it any more", now)
                return True
            for waiter in expected:
                self._waiting.look_when_overdue(waiter)
        return False

    def attach(self, event: AcquireRequested) -> bool:
        """Answer a further request of the holder with the lease that it has; tell whether that was possible."""
        holding = self.holding
        if holding is None or holding.lease.job != event.job or not holding.is_placed:
            return False
        holding.calls.add(event.call)
        holding.is_claimed = True
        self._common.calls[event.call] = self._site.group
        if event.request is not None:
            self._remember_request(holding, event.request)
        self._common.out.append(ReplyAcquired(event.call, holding.lease, 0.0, holding.has_restored))
        return True

    def _unlock_holder(self, job: JobId, now: float) -> bool:
        """Take what is left to be done until the holder can run on every node; tell whether nothing is."""
        site = self._site
        is_in_place = True
        for node in site.nodes:
            context = node.context(site.group, job)
            if not node.is_connected or site.operations.of(node.id, job) is not None:
                is_in_place = False
            elif context is None or context.state is ContextState.IDLE:
                pass
            elif context.state is not ContextState.RUNNING or context.locked:
                is_in_place = False
                if context.state is ContextState.RUNNING and site.can_call(node, job, OperationKind.UNLOCK, now):
                    site.operations.unlock(node.id, job, site.token, now)
                elif context.state is ContextState.SAVED and site.can_call(node, job, OperationKind.RESTORE, now):
                    site.operations.bring(node.id, job, site.token, now)
        return is_in_place

    def _deliver(self, holding: Holding, waiters: list[Waiter], now: float) -> None:
        lease = holding.lease
        if not holding.is_claimed:
            if self._previous_holder not in (None, lease.job):
                self.handoffs_total += 1
            waited_from_s = max(self._released_s, min(waiter.arrived_s for waiter in waiters))
            self._site.publish("granted", lease.job, duration_s=now - waited_from_s)
        holding.is_claimed = True
        for waiter in waiters:
            for call in waiter.calls:
                self._waiting.leave(call)
                holding.calls.add(call)
                self._common.calls[call] = self._site.group
                waited_s = now - waiter.arrived_s
                self._common.out.append(ReplyAcquired(call, lease, waited_s, holding.has_restored))
            if waiter.is_named:
                self._remember_request(holding, waiter.request)
            self._waiting.forget(waiter)

    def _remember_request(self, holding: Holding, request: RequestId) -> None:
        if request not in holding.lease.requests:
            holding.lease = replace(holding.lease, requests=(*holding.lease.requests, request))
            self._ledger.changed()

    def _is_abandoned(self, holding: Holding, now: float) -> bool:
        """Judge a lease without session by its job's processes; looks again when that could change."""
        settings, timers = self._common.settings, self._common.timers
        timer = Timer(self._site.group, "sessionless")
        is_seen = any(True for _ in self._site.contexts_of(holding.lease.job))
        holding.was_seen |= is_seen
        if is_seen or (holding.was_seen and not self._site.is_known):
            holding.unseen_since_s = None
            timers.cancel(timer)
            return False
        if not holding.was_seen:
            due_s = holding.since_s + settings.start_grace_s
        else:
            if holding.unseen_since_s is None:
                holding.unseen_since_s = now
            due_s = holding.unseen_since_s + settings.session_ttl_s
        if now < due_s:
            timers.set(timer, due_s)
        return now >= due_s

    # ------------------------------------------------------------ ending

    def give_back(self, event: YieldRequested, now: float) -> None:
        """End the lease that a Yield names; answer an old one as it was answered; refuse all others."""
        holding = self.holding
        current = holding.lease.token if holding is not None else None
        if holding is not None and holding.lease.job == event.job and event.token in (NO_TOKEN, current):
            self._answer_yield(event.call, self.end(Ending.YIELDED, "", now), now)
            return
        before = self.outcomes.of_token(event.token) if event.token else self.last_yield
        if before is not None and before.job == event.job and before.ending is Ending.YIELDED:
            self._answer_yield(event.call, before, now)
            return
        is_foreign = before is not None and before.job != event.job
        if is_foreign or not event.token or event.token == current:
            refusal = texts.not_holder(self._site.group, event.job, self.holder)
        else:
            refusal = texts.stale_lease(self._site.group, event.token, current, before)
        self._common.out.append(Refuse(event.call, refusal))

    def cancel(self, call: CallId, now: float) -> bool:
        """Undo the lease if only calls were answered with it whose replies did not leave; tell whether `call` was
        answered with it."""
        holding = self.holding
        if holding is None or call not in holding.calls:
            return False
        holding.calls.discard(call)
        if not holding.calls and not holding.may_be_known:
            self.end(Ending.UNDONE, "its reply could not be delivered", now)
        return True

    def end(self, ending: Ending, reason: str, now: float) -> EndedLease:
        """End the current lease, whatever the reason."""
        holding = self.holding
        assert holding is not None
        site, lease = self._site, holding.lease
        self.holding = None
        if holding.is_placed:
            self.held_s += now - holding.placed_s
        self._released_s = self.changed_s = now
        self._previous_holder = lease.job
        for call in holding.calls:
            self._common.calls.pop(call, None)
        self._common.graph.hold(site.group, None)
        self._common.timers.cancel(Timer(site.group, "sessionless"))
        if ending is Ending.EVICTED:
            site.evicted.add(lease.job)
            site.resident = None
        ended = EndedLease(
            group=site.group,
            job=lease.job,
            token=lease.token,
            requests=lease.requests,
            ending=ending,
            reason=reason,
            pending_waiters=len(self._waiting.queue),
            snapshot_deferred=self._waiting.queue.first(now) is None,
        )
        self.last_yield = ended if ending is Ending.YIELDED else None
        self.outcomes.add(ended, now)
        self._ledger.changed(ended)
        kind = "lease_lost" if ending is Ending.FAULTED else ending.value
        site.publish(kind, lease.job, detail=reason, duration_s=now - holding.since_s)
        session = self._common.session(lease.session)
        if session is not None and session.stream is not None and ending not in (Ending.YIELDED, Ending.UNDONE):
            self._common.out.append(NotifyLeaseLost(session.stream, session.id, lease, reason))
        return ended

    def _answer_yield(self, call: CallId, ended: EndedLease, now: float) -> None:
        """Answer once the end of the lease is durable; a failed write is said to the caller, who may repeat."""
        out = self._common.out

        def reply(_: float) -> None:
            out.append(ReplyYielded(call, ended.pending_waiters, ended.snapshot_deferred))

        def refuse(_: float) -> None:
            failure = self._ledger.failure or "the store is busy"
            out.append(Refuse(call, texts.not_recorded(self._site.group, failure)))

        self._ledger.after_recorded(reply, now, refuse)
