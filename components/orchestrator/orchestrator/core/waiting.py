"""Who waits for one group, and the calls through which they wait: attached, between two slices, cancelled, refused."""

from __future__ import annotations

from orchestrator.core import texts
from orchestrator.core.common import Common
from orchestrator.core.effects import ForgetWaiter, RecordWaiter, Refuse, ReplyQueued
from orchestrator.core.events import AcquireRequested
from orchestrator.core.site import Site
from orchestrator.core.timers import Timer
from orchestrator.core.types import CallId, JobId, Refusal, RequestId, SessionId, WaiterRecord
from orchestrator.core.waiters import Waiter, WaitQueue


class Waiting:
    """One group's queue and everything by which a waiter comes, stays and goes unserved."""

    def __init__(self, common: Common, site: Site) -> None:
        self._common = common
        self._site = site
        self.queue = WaitQueue(common.settings.reattach_s)
        self._sequence = 0
        self._of_call: dict[CallId, Waiter] = {}

    def enqueue(self, event: AcquireRequested, request: RequestId, *, is_served_now: bool, now: float) -> None:
        """Queue a new request; its place is recorded unless it is served at once."""
        self._sequence += 1
        waiter = Waiter(
            group=self._site.group,
            request=request,
            is_named=event.request is not None,
            job=event.job,
            session=event.session,
            sequence=self._sequence,
            arrived_s=now,
            priority=event.priority,
            expected_hold_s=event.expected_hold_s,
            owner=event.owner,
            detached_s=now,
        )
        self.queue.add(waiter)
        self._common.graph.wait(self._site.group, waiter.job, waiter.sequence)
        session = self._common.session(event.session)
        if session is not None:
            session.groups.add(self._site.group)
        if not is_served_now:
            self._site.publish("queued", event.job)
            if waiter.is_named:
                waiter.is_recorded = True
                ttl_s = session.ttl_s if session is not None else self._common.settings.session_ttl_s
                processes = session.processes if session is not None else ()
                self._common.out.append(RecordWaiter(waiter.record(ttl_s, processes)))
        self.attach(waiter, event.call, event.wait_s, now)

    def attach(self, waiter: Waiter, call: CallId, wait_s: float | None, now: float) -> None:
        """Let a call wait for this waiter's grant, for at most `wait_s`."""
        self.queue.attach(waiter, call, now)
        self._of_call[call] = waiter
        self._common.calls[call] = self._site.group
        self._common.timers.cancel(Timer(self._site.group, "detached", waiter.request))
        if wait_s is not None:
            self._common.timers.set(Timer(self._site.group, "slice", str(call)), now + wait_s)

    def cancel(self, call: CallId) -> None:
        """A call ended: its waiter leaves at once, unless another call waits for the same."""
        waiter = self._of_call.get(call)
        if waiter is None:
            return
        self.leave(call)
        if len(waiter.calls) > 1:
            del waiter.calls[call]
        else:
            self.drop(waiter)

    def end_slice(self, call: CallId, now: float) -> None:
        """A call's time is over: it is answered, and its waiter keeps its place."""
        waiter = self._of_call.get(call)
        if waiter is None:
            return
        self.queue.detach(waiter, call, now)
        self.leave(call)
        self._common.out.append(ReplyQueued(call))
        if waiter.detached_s is not None:
            self._watch_detached(waiter, now)

    def drop_overdue(self, request: RequestId, now: float) -> None:
        """A waiter without session that did not come back in time leaves."""
        waiter = self.queue.get(request)
        if waiter is None or waiter.session is not None or waiter.detached_s is None:
            return
        if now >= waiter.detached_s + self._common.settings.detached_grace_s:
            self.drop(waiter)

    def drop_job(self, job: JobId, refusal: Refusal) -> None:
        """Refuse all waiters of a job."""
        for waiter in self.queue.of_job(job):
            self.drop(waiter, refusal)

    def drop_session(self, session: SessionId) -> None:
        """Refuse all waiters of a session that is over."""
        for waiter in [waiter for waiter in self.queue if waiter.session == session]:
            self.drop(waiter, texts.session_over(session))

    def drop(self, waiter: Waiter, refusal: Refusal | None = None) -> None:
        """A waiter leaves unserved; the calls that still wait are refused."""
        for call in waiter.calls:
            self.leave(call)
            if refusal is not None:
                self._common.out.append(Refuse(call, refusal))
        self.forget(waiter)
        self._site.publish("left", waiter.job)

    def leave(self, call: CallId) -> None:
        """A call waits no more."""
        self._of_call.pop(call, None)
        self._common.calls.pop(call, None)
        self._common.timers.cancel(Timer(self._site.group, "slice", str(call)))

    def forget(self, waiter: Waiter) -> None:
        """A waiter is out of the queue, served or not."""
        self.queue.remove(waiter)
        self._common.graph.leave(self._site.group, waiter.job, waiter.sequence)
        self._common.timers.cancel(Timer(self._site.group, "detached", waiter.request))
        if waiter.is_recorded:
            self._common.out.append(ForgetWaiter(self._site.group, waiter.request))

    def restore(self, record: WaiterRecord, now: float) -> None:
        """Give a waiter of before the restart its place again; it has no call attached yet."""
        if record.session is not None:
            self._common.restore_session(
                self._site.group, record.session, record.job, record.ttl_s, record.processes, now
            )
        waiter = Waiter(
            group=self._site.group,
            request=record.request,
            is_named=True,
            job=record.job,
            session=record.session,
            sequence=record.sequence,
            arrived_s=now,
            detached_s=now,
            is_recorded=True,
            priority=record.priority,
            expected_hold_s=record.expected_hold_s,
            owner=record.owner,
        )
        self._sequence = max(self._sequence, record.sequence)
        self.queue.add(waiter)
        self._common.graph.wait(self._site.group, waiter.job, waiter.sequence)
        self._watch_detached(waiter, now)
        self.look_when_overdue(waiter)

    def look_when_overdue(self, waiter: Waiter) -> None:
        """Have the group look again when a detached waiter is no longer expected back at once."""
        if waiter.detached_s is not None:
            self._site.look_at(waiter.detached_s + self._common.settings.reattach_s, "reattach")

    def _watch_detached(self, waiter: Waiter, now: float) -> None:
        if not waiter.is_named:
            self.drop(waiter)  # nobody can come back to it
        elif waiter.session is None:
            timer = Timer(self._site.group, "detached", waiter.request)
            self._common.timers.set(timer, now + self._common.settings.detached_grace_s)
