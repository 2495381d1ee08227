"""One group: who is next, and when to switch.

Requests change memory at once; whatever is told to the outside waits for the record (`ledger.py`). `settle` then takes
every decision that can be taken, and is called after each event.
"""

from __future__ import annotations

from orchestrator.core import texts
from orchestrator.core.common import Common
from orchestrator.core.conditions import Standing, standing
from orchestrator.core.effects import Refuse, StepDown
from orchestrator.core.events import AcquireRequested, YieldRequested
from orchestrator.core.faults import Faults
from orchestrator.core.holding import Holding
from orchestrator.core.intruders import Intruders
from orchestrator.core.leases import Leases
from orchestrator.core.ledger import Ledger
from orchestrator.core.operations import End, OperationKind, Operations, Outcome
from orchestrator.core.sessions import Session
from orchestrator.core.site import Site, Trouble
from orchestrator.core.switch import Phase, Switch
from orchestrator.core.switch_steps import forward_steps
from orchestrator.core.timers import Timer
from orchestrator.core.types import (
    NO_TOKEN,
    CallId,
    EndedLease,
    Ending,
    GroupConfig,
    GroupRecord,
    IntentRecord,
    JobId,
    NodeId,
    OperationId,
    RecordId,
    Refusal,
    RequestId,
    SessionId,
    Token,
    WaiterRecord,
)
from orchestrator.core.waiters import Waiter, WaitQueue
from orchestrator.core.waiting import Waiting


class Group:
    """Serves one group. All times are the caller's."""

    def __init__(self, config: GroupConfig, record: GroupRecord | None, common: Common, now: float) -> None:
        self.id = config.group
        self._common = common
        self.ledger = Ledger(self.id, record.version if record else RecordId(0), common.out, common.timers)
        self.last_token = record.last_token if record else NO_TOKEN
        self.site = Site(
            config=config,
            settings=common.settings,
            ids=common.ids,
            timers=common.timers,
            out=common.out,
            nodes=[common.nodes[node] for node in config.nodes],
            operations=Operations(
                self.id, common.settings, common.ids, common.timers, common.out, common.nodes, common.epoch
            ),
            token=self.last_token,
        )
        self.waiting = Waiting(common, self.site)
        self.leases = Leases(common, self.site, self.waiting, self.ledger, now)
        self.switch: Switch | None = None
        self.faults = Faults(self.site, self.leases, self.waiting, self.ledger)
        self._intruders = Intruders(self.site, self.leases)
        self._claims_until_s = now
        """So long nobody is granted or taken for an intruder: a holder whose lease is not on record may come back and
        claim it."""
        self.overlap: str | None = None
        """Why the group is not served; None: it is."""
        self.first_seen_s = now
        self.switched_s = now
        """When a switch last began or ended."""
        self.standing = Standing(self.site)
        self.standing.watch_unheard_nodes(now)
        if record is not None:
            self._take_over(record, now)

    @property
    def queue(self) -> WaitQueue:
        """Who waits."""
        return self.waiting.queue

    @property
    def holding(self) -> Holding | None:
        """The current lease; None: there is none."""
        return self.leases.holding

    @property
    def intruders(self) -> dict[JobId, float]:
        """Who was found on the device without the lease, and since when; not to be changed."""
        return self._intruders.since

    @property
    def is_waiting_for_room(self) -> bool:
        """A change of an accelerator's figures may let the group go on."""
        return self.switch is not None and self.switch.phase is Phase.BLOCKED

    # ------------------------------------------------------------ requests

    def acquire(self, event: AcquireRequested, now: float) -> None:
        """Grant, queue, attach or refuse a request."""
        request = event.request or RequestId(f"call {event.call}")
        refusal = self._refuse_old(event.request, event.job) if event.request is not None else None
        waiter = self.queue.get(request)
        if refusal is None and self.leases.attach(event):
            if waiter is not None:
                self.waiting.forget(waiter)  # it was between two slices when its session was granted
            return
        if refusal is None and waiter is None:
            refusal = self._refuse_new(event)
        if refusal is not None:
            self._common.out.append(Refuse(event.call, refusal))
        elif waiter is not None:
            self.waiting.attach(waiter, event.call, event.wait_s, now)
        else:
            is_free = self.holding is None and self.switch is None and self.site.is_known and not len(self.queue)
            is_shared = self.holding is not None and self.holding.is_placed and self.leases.holder == event.job
            self.waiting.enqueue(event, request, is_served_now=is_free or is_shared, now=now)

    def give_back(self, event: YieldRequested, now: float) -> None:
        """A client gives its lease back, or repeats that."""
        self.leases.give_back(event, now)

    def claim(self, session: Session, token: Token, now: float) -> bool:
        """Hear from a client that it holds a lease, and believe it if the store was lost: when the record knows nothing
        of that token, and its job can run without anything being moved. False: that cannot be told yet, since not every
        node is heard, or something is under way; nothing was changed."""
        holding = self.holding
        if holding is not None and (holding.lease.job, holding.lease.token) == (session.job, token):
            if session.id not in holding.lease.holders:
                self.leases.adopt_share(session)
            return True
        knows_of_it = token < self.last_token or self.leases.outcomes.of_token(token) is not None
        if holding is not None or self.switch is not None or knows_of_it:
            return True
        if not self.site.is_known or len(self.site.operations):
            return False
        if self.overlap is None and session.job not in self.site.faults and self._is_in_place(session.job):
            self.last_token = token
            self.site.use_token(token)
            self._claims_until_s = now
            self.leases.adopt(session, token, now)
        return True

    def cancel(self, call: CallId, now: float) -> None:
        """A call ended before its reply was written: its waiter leaves, or its lease is undone."""
        if not self.leases.cancel(call, now):
            self.waiting.cancel(call)

    def session_ended(self, session: SessionId, now: float) -> None:
        """A client is gone: its waiters leave, its lease ends or passes to another process of its job."""
        self.waiting.drop_session(session)
        self.leases.session_ended(session, now)

    def evict(self, reason: str, now: float) -> EndedLease:
        """End the lease on an operator's word; the job's context goes off the device."""
        return self.leases.end(Ending.EVICTED, reason or "ended by an operator", now)

    def drop_waiter(self, waiter: Waiter, reason: str) -> None:
        """Take a waiter out of the queue on an operator's word."""
        self.waiting.drop(waiter, texts.dropped(waiter.request, reason))

    def clear_fault(self, job: JobId) -> bool:
        """Forget a job's fault and its failed tries, and believe its agents again; tell whether there was any."""
        was_faulted = self.site.faults.pop(job, None) is not None
        had_trouble = self.site.troubles.pop(job, None) is not None
        was_unexplained = any([node.explain(self.id, job) for node in self.site.nodes])
        if was_faulted:
            self.ledger.changed()
        return was_faulted or had_trouble or was_unexplained

    def forget_node(self, node: NodeId, now: float) -> None:
        """A node is gone for good: the jobs that had a context there are faulted, the group goes on without it."""
        lost = sorted({job for other in self.site.nodes if other.id == node for job in other.contexts(self.id)})
        for outcome in self.site.operations.forget_node(node, now):
            self.note(outcome, now)
        self.site.nodes = [other for other in self.site.nodes if other.id != node]
        self.site.publish("node_forgotten", node=node)
        for job in lost:
            self.site.fault(job, f"its context on node {node!r} is lost with the node")

    def reconfigure(self, config: GroupConfig, now: float) -> None:
        """Take over changed policies and nodes; what is under way on a node that is no longer named runs out."""
        self.site.config = config
        self.site.nodes = [self._common.nodes[node] for node in config.nodes]
        self.standing.watch_unheard_nodes(now)
        self.standing.compare_accelerators()

    # ------------------------------------------------------------ agents and time

    def node_found(self, node: NodeId, now: float, *, is_new: bool) -> None:
        """A node is heard, with its whole state; `is_new`: it was not before."""
        if is_new:
            self.site.publish("node_found", node=node)
        for outcome in self.site.operations.node_observed(node, now):
            self.note(outcome, now)

    def node_lost(self, node: NodeId, now: float) -> None:
        """A node is not heard any more; status shows UNKNOWN after a while."""
        self.site.publish("node_lost", node=node)
        self.site.look_at(now + self._common.settings.unreachable_after_s, f"silence/{node}")

    def note(self, outcome: Outcome, now: float) -> None:
        """Take account of the end of an operation."""
        site, operation = self.site, outcome.operation
        call = (operation.node, operation.job, operation.kind)
        if outcome.end is End.STALE:
            if operation.token == site.token:  # else a later call of ours has overtaken it on its way
                reason = f"node {operation.node!r} has seen a newer orchestrator or token: {outcome.error}"
                self._common.out.append(StepDown(reason))
            return
        site.publish_end(outcome, now)
        if outcome.end is End.DONE and operation.kind is OperationKind.SNAPSHOT:
            self.leases.saved(operation.job)
        if outcome.end is End.INDETERMINATE:
            site.indeterminate[(operation.node, operation.job)] = outcome.error
        if outcome.end in (End.DONE, End.GONE):
            site.indeterminate.pop((operation.node, operation.job), None)
            site.succeeded(call)
        if outcome.end is End.LOST and operation.after is not None and site.operations.is_under_way(operation.after):
            site.retry_later(call, now)  # what it was to follow is in doubt, and so would the next one be
        if self._intruders.took(outcome, now):
            pass
        elif self.switch is not None:
            self.switch.note(outcome, now)
        elif outcome.end in (End.FAILED, End.INDETERMINATE):
            site.retry_later(call, now)
            if operation.kind is OperationKind.SNAPSHOT:
                trouble = site.troubles.setdefault(operation.job, Trouble())
                trouble.failed(f"node {operation.node}: {outcome.error}", cannot_lock=False)

    def raise_token(self, token: Token, now: float) -> None:
        """An agent has seen this token: ours start above it."""
        if token <= self.last_token:
            return
        self.last_token = token
        self.site.use_token(token)
        self.ledger.changed()
        # The store is older than what the agents obey: who holds by a record that was lost says so when it is back.
        self._claims_until_s = now + self._common.settings.claims_wait_s
        self.site.look_at(self._claims_until_s, "claims")
        if self.switch is not None:
            self._intend(self.switch, self._next_token(), now)

    def wake(self, timer: Timer, now: float) -> None:
        """One of the group's timers is due; `settle` does what depends on time alone."""
        match timer.purpose:
            case "slice":
                self.waiting.end_slice(CallId(int(timer.subject)), now)
            case "detached":
                self.waiting.drop_overdue(RequestId(timer.subject), now)
            case "store":
                self.ledger.retry(now)
            case "operation":
                outcome = self.site.operations.deadline_passed(OperationId(timer.subject), now)
                if outcome is not None:
                    self.note(outcome, now)
            case _:
                pass

    # ------------------------------------------------------------ deciding

    def settle(self, now: float) -> None:
        """Take every decision that can be taken now, then send the record if it changed."""
        self.faults.look()
        for _ in range(32):
            if not self._step(now):
                break
        else:
            raise AssertionError(f"group {self.id!r} does not come to rest")
        if now >= self._claims_until_s:
            self._intruders.lock(now)
        self.standing.tell_silence(now)
        self.standing.update(standing(self, self._common.sessions, now))
        self.ledger.flush(self.record, now)

    def _step(self, now: float) -> bool:
        """Take one decision; tell whether another may follow from it."""
        if self.site.new_faults:
            self.faults.act(now)
            return True
        if self.holding is not None:
            return self.leases.place(now)
        if self.switch is not None:
            return self._drive(self.switch, now)
        return self._serve(now)

    def _serve(self, now: float) -> bool:
        """Begin to serve the next waiter, if there is one and every node is known."""
        if not self.site.is_known or self.overlap is not None or now < self._claims_until_s:
            return False
        waiter = self.queue.first(now)
        if waiter is None:
            has_unrest = (bool(self.site.unrest()) or self.site.is_repairing) and not self._common.is_draining
            if has_unrest:
                self._begin_switch(None, now)
            return has_unrest
        if not self.queue.has_attached(waiter.job):
            self.waiting.look_when_overdue(waiter)
            return False
        if self._is_in_place(waiter.job):
            self._grant(waiter.job, self._next_token(), has_restored=False, now=now)
        elif self._common.is_draining:
            return False
        else:
            self._begin_switch(waiter.job, now)
        return True

    def _is_in_place(self, job: JobId) -> bool:
        """Nothing has to be moved for this job to be granted, and nothing is being moved."""
        site = self.site
        return (
            not len(site.operations)
            and not site.is_repairing
            and not any(
                forward_steps(
                    node.unsaved(self.id),
                    job,
                    node.context(self.id, job),
                    site.staying_on(node, job),
                    site.unseen_on(node),
                )
                for node in site.nodes
            )
        )

    def _grant(
        self, job: JobId, token: Token, *, has_restored: bool, is_intended: bool = False, now: float
    ) -> None:
        self._intruders.since.pop(job, None)
        self.leases.grant(job, token, has_restored=has_restored, is_intended=is_intended, now=now)

    def _begin_switch(self, target: JobId | None, now: float) -> None:
        token = self._next_token()
        self.switch = Switch(self.site, target, token, now)
        self._common.graph.hold(self.id, target)
        self._intend(self.switch, token, now)
        self.site.publish("switch_started", target)
        self.switched_s = now

    def _intend(self, switch: Switch, token: Token, now: float) -> None:
        """Let a switch go on under this token as soon as that is durable."""

        def recorded(_: float) -> None:
            if switch.token == token:
                self.site.use_token(token)
                switch.recorded()

        switch.intend(token)
        self.ledger.changed()
        self.ledger.after_recorded(recorded, now)

    def _end_switch(self, now: float) -> None:
        self.switch = None
        self._common.graph.hold(self.id, None)
        self.ledger.changed()
        self.switched_s = now

    def _drive(self, switch: Switch, now: float) -> bool:
        """Take the switch on; end it when its reason is gone, or when it is done."""
        target = switch.target
        if self.site.is_heir_known:
            self.site.settle_heir()
        if target is not None and not self.queue.is_wanted_by(target, now):
            if self.site.heir is not None:
                return False  # it may be on the device unlocked, and its intent alone says so
            self._end_switch(now)
            return True
        if target is None and self.queue.first(now) is not None:
            self._end_switch(now)
            return True
        switch.advance(now, is_expected=target is not None and self.queue.has_attached(target))
        if self.site.new_faults:
            return True
        if switch.phase is Phase.BLOCKED:
            return self._serve_resident(now)
        if switch.phase is not Phase.PLACED:
            return False
        if target is None:
            self._end_switch(now)
            return True
        waiters = self.queue.of_job(target)
        if all(waiter.detached_s is not None for waiter in waiters):
            for waiter in waiters:
                self.waiting.look_when_overdue(waiter)
            return False
        self._end_switch(now)
        self._grant(target, switch.token, has_restored=switch.has_restored, is_intended=True, now=now)
        self.site.publish("switch_finished", target, duration_s=now - switch.started_s)
        return True

    def _serve_resident(self, now: float) -> bool:
        """While the group is Blocked, the job that cannot be moved may run on and yield again."""
        job = self.site.resident
        if job is None or job in self.site.faults or not self.site.is_known or not self._is_in_place(job):
            return False
        if not self.queue.has_attached(job):
            return False
        if self._common.graph.depends_on_waiter(self.id, job):
            return False
        self._end_switch(now)
        self._grant(job, self._next_token(), has_restored=False, now=now)
        return True

    # ------------------------------------------------------------ records

    def record(self, version: RecordId) -> GroupRecord:
        """Return what the store is to keep."""
        switch = self.switch
        intent = None
        if switch is not None:
            outgoing = tuple(sorted(self.site.unsaved_jobs() - {switch.target}))
            intent = IntentRecord(token=switch.token, job=switch.target, outgoing=outgoing)
        return GroupRecord(
            group=self.id,
            version=version,
            last_token=self.last_token,
            lease=self.holding.lease if self.holding is not None else None,
            intent=intent,
            resident=self.site.resident,
            last_yield=self.leases.last_yield,
            faulted=tuple(sorted(self.site.faults.items())),
        )

    def restore_waiter(self, record: WaiterRecord, now: float) -> None:
        """Give a waiter of before the restart its place again."""
        self.waiting.restore(record, now)

    def _take_over(self, record: GroupRecord, now: float) -> None:
        """Go on where the record stands."""
        self.site.resident = record.resident
        self.site.faults = dict(record.faulted)
        self.site.new_faults = list(self.site.faults)
        self.leases.take_over(record, now)
        if record.lease is None and record.intent is not None:
            self.switch = Switch(self.site, record.intent.job, record.intent.token, now)
            self.switch.recorded()
            self.site.heir = record.intent.job
            self._common.graph.hold(self.id, self.switch.target)

    # ------------------------------------------------------------ helpers

    def _next_token(self) -> Token:
        self.last_token = Token(self.last_token + 1)
        return self.last_token

    def _refuse_old(self, request: RequestId, job: JobId) -> Refusal | None:
        """Refuse a request whose lease is over, or that is another job's."""
        refusal = self.leases.refusal(request, job)
        if refusal is not None:
            return refusal
        waiter = self.queue.get(request)
        if waiter is not None and waiter.job != job:
            return texts.foreign_request(request, job)
        return None

    def _refuse_new(self, event: AcquireRequested) -> Refusal | None:
        """Refuse a request that could never be served."""
        if event.job in self.site.faults:
            return texts.job_faulted(event.job, self.id, self.site.faults[event.job])
        if self.overlap is not None:
            return texts.overlapping(self.id, self.overlap)
        if self.leases.holder == event.job or self.queue.of_job(event.job):
            return None  # it is answered together with what the job has already
        cycle = self._common.graph.cycle(self.id, event.job)
        return texts.cycle(self.id, event.job, cycle) if cycle else None
