"""The lease of one group: granted, recorded, put in place, answered, given back, ended."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core import texts
from orchestrator.core.common import Common
from orchestrator.core.effects import NotifyLeaseLost, Refuse, ReplyAcquired, ReplyYielded
from orchestrator.core.events import AcquireRequested, YieldRequested
from orchestrator.core.holding import Holding
from orchestrator.core.ledger import Ledger
from orchestrator.core.operations import OperationKind
from orchestrator.core.outcomes import Outcomes
from orchestrator.core.sessions import Session
from orchestrator.core.shares import Leaving, Shares
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
    Refusal,
    RequestId,
    SessionId,
    Share,
    Token,
)
from orchestrator.core.waiters import Waiter
from orchestrator.core.waiting import Waiting


class Leases:
    """One group's current lease, and what is remembered of those before it."""

    def __init__(self, common: Common, site: Site, waiting: Waiting, ledger: Ledger, now: float) -> None:
        settings = common.settings
        self._common = common
        self._site = site
        self._waiting = waiting
        self._ledger = ledger
        self._shares = Shares(common, site, waiting.queue, ledger)
        self.outcomes = Outcomes(site.group, settings.outcome_kept_s, settings.outcomes_kept_per_group, common.out)
        self.holding: Holding | None = None
        self.last_yield: EndedLease | None = None
        """The lease that ended last, if its job gave it back and nobody was granted since."""
        self.changed_s = now
        """When a lease was last granted, put in place or ended."""
        self.held_s = 0.0
        self.handoffs_total = 0
        self._told: set[JobId] = set()
        """Jobs that were granted since their contexts were saved last."""
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
        if record.lease is not None:
            self._go_on_with(record.lease, now)

    def adopt(self, session: Session, token: Token, now: float) -> None:
        """Take over a lease that a client says it holds, as if the record named it."""
        lease = Lease(
            group=self._site.group,
            job=session.job,
            token=token,
            session=session.id,
            accelerators=self._site.accelerators(),
            ttl_s=session.ttl_s,
            processes=session.processes,
        )
        self._go_on_with(lease, now)
        self._ledger.changed()
        self.changed_s = now
        self._site.publish("adopted", session.job, detail=texts.adopted(lease))

    def adopt_share(self, session: Session) -> None:
        """Let another process of the job hold a lease that it says it shares."""
        assert self.holding is not None
        self._shares.adopt(self.holding, session)

    def _go_on_with(self, lease: Lease, now: float) -> None:
        # Whether its reply had left is not known: the job may be at work with it.
        holding = Holding(lease, now, has_restored=False, is_recorded=True, is_claimed=True, sessionless_since_s=now)
        holding.may_know.update(lease.holders)
        holding.recorded.update(lease.holders)
        holding.announced.update(share.session for share in lease.shared)
        self.holding = holding
        self._common.graph.hold(lease.group, lease.job)
        self._restore_session(lease, lease, now)
        for share in lease.shared:
            self._restore_session(lease, share, now)

    def _restore_session(self, lease: Lease, held: Lease | Share, now: float) -> None:
        if held.session is not None:
            self._common.restore_session(lease.group, held.session, lease.job, held.ttl_s, held.processes, now)

    # ------------------------------------------------------------ granting

    def grant(
        self, job: JobId, token: Token, *, has_restored: bool, is_intended: bool = False, now: float
    ) -> None:
        """Decide the lease. It is recorded and the context unlocked, at the same time if a recorded intent names this
        job and token (`is_intended`), else one after the other; then the replies leave."""
        site = self._site
        waiters = self._waiting.queue.of_job(job)
        owner = next((waiter for waiter in waiters if waiter.detached_s is None), waiters[0])
        session = self._common.session(owner.session)
        lease = Lease(
            group=site.group,
            job=job,
            token=token,
            session=owner.session,
            requests=tuple(w.request for w in waiters if w.is_named and w.session == owner.session),
            accelerators=site.accelerators(),
            ttl_s=session.ttl_s if session is not None else self._common.settings.session_ttl_s,
            processes=session.processes if session is not None else (),
            shared=self._shares.of([waiter for waiter in waiters if waiter.detached_s is None], owner.session),
        )
        holding = Holding(lease, now, has_restored, is_intended=is_intended, sessionless_since_s=now)
        self.holding = holding
        site.welcome(job)
        self.last_yield = None
        self._common.graph.hold(site.group, job)
        self._ledger.changed()

        def recorded(_: float) -> None:
            site.use_token(token)
            holding.is_recorded = True
            holding.recorded.update(set(lease.holders).intersection(holding.lease.holders) - holding.joins.keys())

        self._ledger.after_recorded(recorded, now)
        self.changed_s = now

    def place(self, now: float) -> bool:
        """Unlock the holder's context wherever it is locked; then answer; tell whether the lease ended."""
        holding = self.holding
        assert holding is not None
        if not holding.is_recorded and not holding.is_intended:
            return False
        is_in_place = self._unlock_holder(holding.lease.job, now)
        if not holding.is_recorded:
            return False
        if (
            holding.lease.session is None
            and self._is_abandoned(holding, now)
            and not self._shares.leave(holding, None, Leaving.ENDED, now)
        ):
            self.end(Ending.EXPIRED, "none of the job's processes is left", now)
            return True
        if not holding.is_placed:
            if not is_in_place:
                return False
            holding.is_placed = True
            holding.placed_s = self.changed_s = now
            holding.discarded_tags = self._untold(holding.lease.job)
        queue = self._waiting.queue
        attached = [waiter for waiter in queue.of_job(holding.lease.job) if waiter.detached_s is None]
        ready = self._shares.admit(holding, attached, now) if attached else []
        if ready:
            self._deliver(holding, ready, now)
        if not attached and not holding.is_claimed:
            expected = [waiter for waiter in queue.of_job(holding.lease.job) if queue.is_expected(waiter, now)]
            if not expected:
                self.end(Ending.UNDONE, "nobody waits for it any more", now)
                return True
        for waiter in queue.of_job(holding.lease.job):
            if queue.is_expected(waiter, now):
                self._waiting.look_when_overdue(waiter)
        self._shares.forget_strangers(holding, now)
        return False

    def attach(self, event: AcquireRequested) -> bool:
        """Answer a further request of who holds the lease with it; tell whether that was possible. Another process of
        the job waits until its share is recorded."""
        holding = self.holding
        if (
            holding is None
            or holding.lease.job != event.job
            or not holding.is_placed
            or event.session not in holding.recorded
        ):
            return False
        holding.calls[event.call] = event.session
        holding.is_claimed = True
        self._common.calls[event.call] = self._site.group
        if event.request is not None:
            self._shares.remember(holding, event.session, event.request)
        self._common.out.append(_acquired(event.call, holding, 0.0))
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
                holding.calls[call] = waiter.session
                self._common.calls[call] = self._site.group
                waited_s = now - waiter.arrived_s
                self._common.out.append(_acquired(call, holding, waited_s))
            self._waiting.forget(waiter)
        self._shares.announce(holding, {waiter.session for waiter in waiters}, now)

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
            due_s = holding.sessionless_since_s + settings.start_grace_s
        else:
            if holding.unseen_since_s is None:
                holding.unseen_since_s = now
            due_s = holding.unseen_since_s + settings.session_ttl_s
        if now < due_s:
            timers.set(timer, due_s)
        return now >= due_s

    def saved(self, job: JobId) -> None:
        """A context of the job was saved: what that dropped, if anything, is news to the job."""
        self._told.discard(job)

    def _untold(self, job: JobId) -> tuple[str, ...]:
        """Return what the job's contexts lack and it was not told of; an agent shows that until the next snapshot."""
        self._told &= self._site.jobs()
        dropped = {tag: None for _, context in self._site.contexts_of(job) for tag in context.discarded_tags}
        if job in self._told:
            return ()
        self._told.add(job)
        return tuple(dropped)

    # ------------------------------------------------------------ ending

    def give_back(self, event: YieldRequested, now: float) -> None:
        """End the lease that a Yield names, or the share of who does not own it; answer an old one as it was answered;
        refuse all others."""
        holding = self.holding
        current = holding.lease.token if holding is not None else None
        if holding is not None and holding.lease.job == event.job and event.token in (NO_TOKEN, current):
            self._give_back_current(holding, event, now)
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

    def _give_back_current(self, holding: Holding, event: YieldRequested, now: float) -> None:
        lease, session = holding.lease, event.session
        if session is None or session == lease.session:
            reason = texts.given_back_by(session, lease)
            self._answer_yield(event.call, self.end(Ending.YIELDED, "", now, by=session, told=reason), now)
        elif session in lease.holders:
            self._shares.leave(holding, session, Leaving.YIELDED, now)
            self._answer_yield(event.call, self._share_ended(lease), now)
        elif event.token:  # it names the lease, so it has shared it: a repeated Yield
            self._answer_yield(event.call, self._share_ended(lease), now)
        else:
            self._common.out.append(Refuse(event.call, texts.not_sharing(session, lease)))

    def _share_ended(self, lease: Lease) -> EndedLease:
        """Return what a Yield that ends only a share is answered with: the context stays on the device."""
        return EndedLease(
            group=lease.group,
            job=lease.job,
            token=lease.token,
            requests=(),
            ending=Ending.YIELDED,
            pending_waiters=len(self._waiting.queue),
            snapshot_deferred=True,
        )

    def cancel(self, call: CallId, now: float) -> bool:
        """Undo a holder's part in the lease if it was answered only by calls whose replies did not leave, and the lease
        if that was its last; tell whether `call` was answered with it."""
        holding = self.holding
        if holding is None or call not in holding.calls:
            return False
        session = holding.calls.pop(call)
        if not self._shares.is_expected(holding, session, now) and not self._shares.leave(
            holding, session, Leaving.UNANSWERED, now
        ):
            self.end(Ending.UNDONE, "its reply could not be delivered", now)
        return True

    def session_ended(self, session: SessionId, now: float) -> None:
        """A client is gone: its lease ends, unless other processes of its job hold it too."""
        holding = self.holding
        if (
            holding is not None
            and session in holding.lease.holders
            and not self._shares.leave(holding, session, Leaving.ENDED, now)
        ):
            self.end(Ending.EXPIRED, f"session {session!r} ended", now)

    def refusal(self, request: RequestId, job: JobId) -> Refusal | None:
        """Refuse a request whose lease, or share of one, is over; None: it is not."""
        ended = self.outcomes.of_request(request)
        if ended is not None:
            return texts.request_over(request, ended) if ended.job == job else texts.foreign_request(request, job)
        if self.holding is not None and request in self.holding.lease.returned:
            return texts.request_returned(request, self.holding.lease)
        return None

    def end(
        self, ending: Ending, reason: str, now: float, *, by: SessionId | None = None, told: str = ""
    ) -> EndedLease:
        """End the current lease, whatever the reason, and tell its holders, except who gave it back (`by`)."""
        holding = self.holding
        assert holding is not None
        site, lease = self._site, holding.lease
        self.holding = None
        holding.is_over = True
        if holding.is_placed:
            self.held_s += now - holding.placed_s
        self._released_s = self.changed_s = now
        self._previous_holder = lease.job
        for call in holding.calls:
            self._common.calls.pop(call, None)
        self._common.graph.hold(site.group, None)
        self._common.timers.cancel(Timer(site.group, "sessionless"))
        if ending is Ending.EVICTED:
            site.evict(lease.job)
        ended = EndedLease(
            group=site.group,
            job=lease.job,
            token=lease.token,
            requests=lease.all_requests(),
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
        if ending is Ending.YIELDED:
            holders = [session for session in lease.holders if session != by]
            self._ledger.after_recorded(lambda _: self._tell_lost(lease, holders, told), now)
        elif ending is not Ending.UNDONE:
            self._tell_lost(lease, lease.holders, reason)
        return ended

    def _tell_lost(self, lease: Lease, holders: Iterable[SessionId | None], reason: str) -> None:
        for session in map(self._common.session, holders):
            if session is not None and session.stream is not None:
                self._common.out.append(NotifyLeaseLost(session.stream, session.id, lease, reason))

    def _answer_yield(self, call: CallId, ended: EndedLease, now: float) -> None:
        """Answer once the end of the lease is durable; a failed write is said to the caller, who may repeat."""
        out = self._common.out

        def reply(_: float) -> None:
            out.append(ReplyYielded(call, ended.pending_waiters, ended.snapshot_deferred))

        def refuse(_: float) -> None:
            failure = self._ledger.failure or "the store is busy"
            out.append(Refuse(call, texts.not_recorded(self._site.group, failure)))

        self._ledger.after_recorded(reply, now, refuse)


def _acquired(call: CallId, holding: Holding, waited_s: float) -> ReplyAcquired:
    return ReplyAcquired(call, holding.lease, waited_s, holding.has_restored, holding.discarded_tags)
