"""One group: its queue, its lease, and when to switch.

Requests change memory at once; whatever is told to the outside waits for the record (`ledger.py`). `settle` then takes
every decision that can be taken, and is called after each event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core import texts
from orchestrator.core.effects import (
    Effect,
    ForgetWaiter,
    NotifyLeaseLost,
    RecordWaiter,
    Refuse,
    ReplyAcquired,
    ReplyQueued,
    ReplyYielded,
    StepDown,
)
from orchestrator.core.events import AcquireRequested, YieldRequested
from orchestrator.core.identifiers import Identifiers
from orchestrator.core.ledger import Ledger
from orchestrator.core.nodes import Node
from orchestrator.core.operations import End, OperationKind, Operations, Outcome
from orchestrator.core.outcomes import Outcomes
from orchestrator.core.sessions import Sessions
from orchestrator.core.site import Site, Trouble
from orchestrator.core.switch import Phase, Switch
from orchestrator.core.switch_steps import forward_steps
from orchestrator.core.timers import Timer, Timers
from orchestrator.core.types import (
    NO_TOKEN,
    CallId,
    ContextState,
    CoreSettings,
    EndedLease,
    Ending,
    Epoch,
    GroupConfig,
    GroupRecord,
    IntentRecord,
    JobId,
    Lease,
    NodeId,
    OperationId,
    RecordId,
    Refusal,
    RequestId,
    SessionId,
    Token,
    WaiterRecord,
)
from orchestrator.core.wait_graph import WaitGraph
from orchestrator.core.waiters import Waiter, WaitQueue


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


@dataclass(slots=True)
class Common:
    """What all groups of one core share."""

    settings: CoreSettings
    ids: Identifiers
    epoch: Epoch
    timers: Timers
    out: list[Effect]
    nodes: dict[NodeId, Node]
    sessions: Sessions
    graph: WaitGraph
    calls: dict[CallId, Group]
    """Acquire calls in progress, or answered by a lease that still stands, by their group."""


class Group:
    """Serves one group. All times are the caller's."""

    def __init__(self, config: GroupConfig, record: GroupRecord | None, common: Common, now: float) -> None:
        settings = common.settings
        self.id = config.group
        self.config = config
        self._common = common
        self._out = common.out
        self.queue = WaitQueue(settings.reattach_s)
        self.outcomes = Outcomes(self.id, settings.outcome_kept_s, settings.outcomes_kept_per_group, self._out)
        self.ledger = Ledger(self.id, record.version if record else RecordId(0), self._out, common.timers)
        nodes = [common.nodes[node] for node in config.nodes]
        operations = Operations(
            self.id, settings, common.ids, common.timers, self._out, common.nodes, common.epoch
        )
        self.last_token = record.last_token if record else NO_TOKEN
        self.site = Site(
            config, settings, common.ids, common.timers, self._out, nodes, operations, self.last_token
        )
        self.holding: Holding | None = None
        self.switch: Switch | None = None
        self.last_yield: EndedLease | None = None
        self.intruders: dict[JobId, float] = {}
        self.overlap: str | None = None
        """Why the group is not served; None: it is."""
        self.first_seen_s = now
        self.state_since_s = now
        self.held_s = 0.0
        self.handoffs_total = 0
        self._sequence = 0
        self._waiters: dict[CallId, Waiter] = {}
        self._intruder_locks: set[OperationId] = set()
        self._previous_holder: JobId | None = None
        self._released_s = now
        if record is not None:
            self._take_over(record, now)

    # ------------------------------------------------------------ requests

    def acquire(self, event: AcquireRequested, now: float) -> None:
        """Grant, queue, attach or refuse a request."""
        request = event.request or RequestId(f"call {event.call}")
        if event.request is not None and (refusal := self._refuse_old(event.request, event.job)) is not None:
            self._refuse(event.call, refusal)
            return
        holding = self.holding
        if holding is not None and holding.lease.job == event.job and holding.is_placed and holding.is_recorded:
            self._attach_to_lease(holding, event, now)
            return
        waiter = self.queue.get(request)
        if waiter is None:
            if (refusal := self._refuse_new(event)) is not None:
                self._refuse(event.call, refusal)
                return
            waiter = self._enqueue(event, request, now)
        else:
            self.queue.attach(waiter, event.call, now)
        self._common.calls[event.call] = self
        self._waiters[event.call] = waiter
        if event.wait_s is not None:
            self._common.timers.set(Timer(self.id, "slice", str(event.call)), now + event.wait_s)

    def cancel(self, call: CallId, now: float) -> None:
        """A call ended before its reply was written: its waiter leaves, or its lease is undone."""
        holding = self.holding
        if holding is not None and call in holding.calls:
            holding.calls.discard(call)
            if not holding.calls and not holding.may_be_known:
                self.end_lease(Ending.UNDONE, "its reply could not be delivered", now)
            return
        waiter = self._waiters.get(call)
        if waiter is not None:
            self._leave(call)
            if len(waiter.calls) > 1:
                del waiter.calls[call]
            else:
                self._drop(waiter)

    def give_back(self, event: YieldRequested, now: float) -> None:
        """End the lease that a Yield names; answer an old one as it was answered; refuse all others."""
        holding = self.holding
        if holding is not None and holding.lease.job == event.job and event.token in (NO_TOKEN, holding.lease.token):
            ended = self.end_lease(Ending.YIELDED, "", now)
            self._answer_yield(event.call, ended, now)
            return
        ended_before = self.outcomes.of_token(event.token) if event.token else self.last_yield
        if ended_before is not None and ended_before.job == event.job:
            if ended_before.ending is Ending.YIELDED:
                self._answer_yield(event.call, ended_before, now)
                return
        elif ended_before is not None or not event.token:
            self._refuse(event.call, texts.not_holder(self.id, event.job, holding.lease.job if holding else None))
            return
        current = holding.lease.token if holding is not None else None
        if current is not None and event.token == current:
            self._refuse(event.call, texts.not_holder(self.id, event.job, holding.lease.job if holding else None))
            return
        self._refuse(event.call, texts.stale_lease(self.id, event.token, current, ended_before))

    def session_ended(self, session: SessionId, now: float) -> None:
        """A client is gone: its waiters leave, its lease ends."""
        for waiter in [waiter for waiter in self.queue if waiter.session == session]:
            for call in waiter.calls:
                self._refuse(call, texts.session_over(session))
            self._drop(waiter)
        if self.holding is not None and self.holding.lease.session == session:
            self.end_lease(Ending.EXPIRED, f"session {session!r} ended", now)

    def end_lease(self, ending: Ending, reason: str, now: float) -> EndedLease:
        """End the current lease, whatever the reason; the next `settle` serves the next waiter."""
        holding = self.holding
        assert holding is not None
        lease = holding.lease
        self.holding = None
        if holding.is_placed:
            self.held_s += now - holding.placed_s
        self._released_s = now
        self._previous_holder = lease.job
        for call in holding.calls:
            self._common.calls.pop(call, None)
        self._common.graph.hold(self.id, None)
        self._common.timers.cancel(Timer(self.id, "sessionless"))
        if ending is Ending.EVICTED:
            self.site.evicted.add(lease.job)
            self.site.resident = None
        ended = EndedLease(
            group=self.id,
            job=lease.job,
            token=lease.token,
            requests=lease.requests,
            ending=ending,
            reason=reason,
            pending_waiters=len(self.queue),
            snapshot_deferred=self.queue.first(now) is None,
        )
        self.last_yield = ended if ending is Ending.YIELDED else None
        self.outcomes.add(ended, now)
        self.ledger.changed(ended)
        self.site.publish(ending.value, lease.job, detail=reason, duration_s=now - holding.since_s)
        session = self._common.sessions.get(lease.session) if lease.session is not None else None
        if session is not None and session.stream is not None and ending not in (Ending.YIELDED, Ending.UNDONE):
            self._out.append(NotifyLeaseLost(session.stream, session.id, lease, reason))
        self._stamp(now)
        return ended

    def drop_waiter(self, waiter: Waiter, reason: str) -> None:
        """Take a waiter out of the queue on an operator's word."""
        for call in waiter.calls:
            self._refuse(call, texts.dropped(waiter.request, reason))
        self._drop(waiter)

    def clear_fault(self, job: JobId) -> bool:
        """Forget a job's fault and its failed tries; tell whether there was any."""
        was_faulted = self.site.faults.pop(job, None) is not None
        had_trouble = self.site.troubles.pop(job, None) is not None
        explained = False
        for node in self.site.nodes:
            before = node.context(self.id, job)
            node.explain(self.id, job)
            explained |= node.context(self.id, job) is not before
        if was_faulted:
            self.ledger.changed()
        return was_faulted or had_trouble or explained

    def forget_node(self, node: NodeId, now: float) -> None:
        """A node is gone for good: the jobs that had a context there are faulted, the group goes on without it."""
        kept = [other for other in self.site.nodes if other.id != node]
        if len(kept) == len(self.site.nodes):
            return
        lost = sorted({job for other in self.site.nodes if other.id == node for job in other.contexts(self.id)})
        for outcome in self.site.operations.forget_node(node, now):
            self.note(outcome, now)
        self.site.nodes = kept
        self.site.publish("node_forgotten", node=node)
        for job in lost:
            self.site.fault(job, f"its context on node {node!r} is lost with the node")

    # ------------------------------------------------------------ agents, store, time

    def note(self, outcome: Outcome, now: float) -> None:
        """Take account of the end of an operation."""
        operation = outcome.operation
        if outcome.end is End.STALE:
            self._out.append(
                StepDown(f"node {operation.node!r} has seen a newer orchestrator or token: {outcome.error}")
            )
            return
        words = {OperationKind.SNAPSHOT: "snapshot", OperationKind.RESTORE: "restore"}
        word = words.get(operation.kind, operation.kind.value)
        elapsed_s = outcome.result.elapsed_s if outcome.result is not None else now - operation.started_s
        if outcome.end is End.DONE and operation.kind in words:
            self.site.publish(f"{word}_finished", operation.job, operation.node, elapsed_s)
        elif outcome.end not in (End.DONE, End.LOST):
            self.site.publish(
                f"{word}_failed", operation.job, operation.node, elapsed_s, f"{outcome.end}: {outcome.error}"
            )
        if outcome.end is End.DONE and operation.kind is OperationKind.SNAPSHOT:
            for other in self.site.operations.on(operation.node):
                if other.after == operation.id:
                    self.site.publish("restore_started", other.job, other.node)
        if outcome.end is End.INDETERMINATE:
            self.site.indeterminate[(operation.node, operation.job)] = outcome.error
        if outcome.end in (End.DONE, End.GONE):
            self.site.succeeded((operation.node, operation.job, operation.kind))
        if operation.id in self._intruder_locks:
            self._intruder_locks.discard(operation.id)  # no try of the switch: that one counts its own
            if outcome.end is End.FAILED:
                self.site.retry_later((operation.node, operation.job, operation.kind), now)
        elif self.switch is not None:
            self.switch.note(outcome, now)
        elif outcome.end in (End.FAILED, End.INDETERMINATE):
            self.site.retry_later((operation.node, operation.job, operation.kind), now)
            if operation.kind is OperationKind.SNAPSHOT:
                trouble = self.site.troubles.setdefault(operation.job, Trouble())
                trouble.tries += 1
                trouble.is_repairing = True
                trouble.reason = f"node {operation.node}: {outcome.error}"

    def raise_token(self, token: Token, now: float) -> None:
        """An agent has seen this token: ours start above it."""
        if token <= self.last_token:
            return
        self.last_token = token
        self.site.token = token
        self.ledger.changed()
        if self.switch is not None:
            self.last_token = Token(token + 1)
            self._intend(self.switch, self.last_token, now)

    def wake(self, timer: Timer, now: float) -> None:
        """One of the group's timers is due; `settle` does what depends on time alone."""
        match timer.purpose:
            case "slice":
                self._end_slice(CallId(int(timer.subject)), now)
            case "detached":
                waiter = self.queue.get(RequestId(timer.subject))
                if waiter is not None and waiter.detached_s is not None and self._is_overdue(waiter, now):
                    self._drop(waiter)
            case "store":
                self.ledger.retry(now)
            case "operation":
                for operation in [op for node in self.site.nodes for op in self.site.operations.on(node.id)]:
                    if operation.id == timer.subject:
                        outcome = self.site.operations.deadline_passed(operation.id, now)
                        if outcome is not None:
                            self.note(outcome, now)
            case _:
                pass

    def reconfigure(self, config: GroupConfig) -> None:
        """Take over changed policies and nodes; what is under way on a node that is no longer named runs out."""
        self.config = config
        self.site.config = config
        self.site.nodes = [self._common.nodes[node] for node in config.nodes]

    def node_found(self, node: NodeId, now: float) -> None:
        """A node is heard again, with its whole state."""
        self.site.publish("node_found", node=node)
        for outcome in self.site.operations.node_observed(node, now):
            self.note(outcome, now)

    def node_lost(self, node: NodeId, now: float) -> None:
        """A node is not heard any more; status shows UNKNOWN after a while."""
        self.site.publish("node_lost", node=node)
        self.site.look_at(now + self._common.settings.unreachable_after_s, f"silence/{node}")

    @property
    def is_waiting_for_room(self) -> bool:
        """A change of an accelerator's figures may let the group go on."""
        return self.switch is not None and self.switch.phase is Phase.BLOCKED

    def settle(self, now: float) -> None:
        """Take every decision that can be taken now, then send the record if it changed."""
        self._look_for_faults()
        for _ in range(32):
            if not self._step(now):
                break
        else:
            raise AssertionError(f"group {self.id!r} does not come to rest")
        self._lock_intruders(now)
        self.ledger.flush(self.record, now)

    def record(self, version: RecordId) -> GroupRecord:
        """Return what the store is to keep."""
        switch = self.switch
        intent = None
        if switch is not None:
            outgoing = tuple(sorted(self.site.jobs() - {switch.target}))
            intent = IntentRecord(token=switch.token, job=switch.target, outgoing=outgoing)
        return GroupRecord(
            group=self.id,
            version=version,
            last_token=self.last_token,
            lease=self.holding.lease if self.holding is not None else None,
            intent=intent,
            resident=self.site.resident,
            last_yield=self.last_yield,
            faulted=tuple(sorted(self.site.faults.items())),
        )

    def restore_waiter(self, record: WaiterRecord, now: float) -> None:
        """Give a waiter of before the restart its place again; it has no call attached yet."""
        if record.session is not None:
            session = self._common.sessions.restore(
                record.session, record.job, record.ttl_s, record.processes, now
            )
            session.groups.add(self.id)
        waiter = Waiter(
            group=self.id,
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
        self._common.graph.wait(self.id, waiter.job, waiter.sequence)
        self._watch_detached(waiter, now)
        self.site.look_at(now + self._common.settings.reattach_s, "reattach")

    # ------------------------------------------------------------ deciding

    def _step(self, now: float) -> bool:
        """Take one decision; tell whether another may follow from it."""
        if self.site.new_faults:
            self._act_on_faults(now)
            return True
        if self.holding is not None:
            return self._place(self.holding, now)
        if self.switch is not None:
            return self._drive(self.switch, now)
        return self._serve(now)

    def _serve(self, now: float) -> bool:
        """Begin to serve the next waiter, if there is one and every node is known."""
        if not self.site.is_known or self.overlap is not None:
            return False
        waiter = self.queue.first(now)
        if waiter is None:
            if self._has_unrest():
                self._begin_switch(None, now)
                return True
            return False
        if waiter.detached_s is not None:
            self.site.look_at(waiter.detached_s + self._common.settings.reattach_s, "reattach")
            return False
        if self._is_in_place(waiter.job):
            self.last_token = Token(self.last_token + 1)
            self._grant(waiter.job, self.last_token, has_restored=False, now=now)
        else:
            self._begin_switch(waiter.job, now)
        return True

    def _has_unrest(self) -> bool:
        """Something must be moved although nobody waits: a torn job, or one that was evicted."""
        return bool(self.site.unrest()) or any(trouble.is_repairing for trouble in self.site.troubles.values())

    def _is_in_place(self, job: JobId) -> bool:
        """Nothing has to be moved for this job to be granted, and nothing is being moved."""
        site = self.site
        return (
            not len(site.operations)
            and not any(trouble.is_repairing for trouble in site.troubles.values())
            and not any(
                forward_steps(node.contexts(self.id), job, site.staying_on(node, job)) for node in site.nodes
            )
        )

    def _begin_switch(self, target: JobId | None, now: float) -> None:
        self.last_token = Token(self.last_token + 1)
        self.switch = Switch(self.site, target, self.last_token, now)
        self._common.graph.hold(self.id, target)
        self._intend(self.switch, self.last_token, now)
        self.site.publish("switch_started", target)
        self._stamp(now)

    def _intend(self, switch: Switch, token: Token, now: float) -> None:
        """Let a switch go on under this token as soon as that is durable."""

        def recorded(_: float) -> None:
            if switch.token == token:
                self._use_token(token)
                switch.recorded()

        switch.intend(token)
        self.ledger.changed()
        self.ledger.after_recorded(recorded, now)

    def _use_token(self, token: Token) -> None:
        self.site.token = max(self.site.token, token)

    def _end_switch(self, now: float) -> None:
        self.switch = None
        self._common.graph.hold(self.id, None)
        self.ledger.changed()
        self._stamp(now)

    def _drive(self, switch: Switch, now: float) -> bool:
        target = switch.target
        if target is not None and not self.queue.is_wanted_by(target, now):
            self._end_switch(now)
            return True
        if target is None and self.queue.first(now) is not None:
            self._end_switch(now)
            return True
        switch.advance(now)
        if self.site.new_faults:
            return True
        if switch.phase is Phase.BLOCKED:
            return self._serve_resident(now)
        if switch.phase is not Phase.PLACED:
            return False
        if target is None:
            self._end_switch(now)
            return True
        if all(waiter.detached_s is not None for waiter in self.queue.of_job(target)):
            for waiter in self.queue.of_job(target):
                if waiter.detached_s is not None:
                    self.site.look_at(waiter.detached_s + self._common.settings.reattach_s, "reattach")
            return False
        self.switch = None
        self._grant(target, switch.token, has_restored=switch.has_restored, now=now)
        self.site.publish("switch_finished", target, duration_s=now - switch.started_s)
        return True

    def _serve_resident(self, now: float) -> bool:
        """While the group is Blocked, the job that cannot be moved may run on and yield again."""
        job = self.site.resident
        if job is None or job in self.site.faults or not self.site.is_known or not self._is_in_place(job):
            return False
        if not any(waiter.detached_s is None for waiter in self.queue.of_job(job)):
            return False
        self._end_switch(now)
        self.last_token = Token(self.last_token + 1)
        self._grant(job, self.last_token, has_restored=False, now=now)
        return True

    def _grant(self, job: JobId, token: Token, *, has_restored: bool, now: float) -> None:
        """Decide the lease. It is recorded, then the context is unlocked, then the replies leave."""
        waiters = self.queue.of_job(job)
        owner = next((waiter for waiter in waiters if waiter.detached_s is None), waiters[0])
        session = self._common.sessions.get(owner.session) if owner.session is not None else None
        lease = Lease(
            group=self.id,
            job=job,
            token=token,
            session=owner.session,
            requests=tuple(waiter.request for waiter in waiters if waiter.is_named),
            accelerators=self.accelerators(),
            ttl_s=session.ttl_s if session is not None else self._common.settings.session_ttl_s,
            processes=session.processes if session is not None else (),
        )
        holding = Holding(lease, now, has_restored)
        self.holding = holding
        self.site.resident = job
        self.site.troubles.pop(job, None)
        self.site.blocked_since.pop(job, None)
        self.intruders.pop(job, None)
        self.site.evicted.discard(job)
        self.last_yield = None
        self._common.graph.hold(self.id, job)
        self.ledger.changed()

        def recorded(_: float) -> None:
            self._use_token(token)
            holding.is_recorded = True

        self.ledger.after_recorded(recorded, now)
        self._stamp(now)

    def _place(self, holding: Holding, now: float) -> bool:
        """Unlock the holder's context wherever it is locked; then answer; tell whether the lease ended."""
        if not holding.is_recorded:
            return False
        is_in_place = self._unlock_holder(holding, now)
        if holding.lease.session is None and self._is_abandoned(holding, now):
            self.end_lease(Ending.EXPIRED, "none of the job's processes is left", now)
            return True
        if not holding.is_placed:
            if not is_in_place:
                return False
            holding.is_placed = True
            holding.placed_s = now
            self._stamp(now)
        attached = [waiter for waiter in self.queue.of_job(holding.lease.job) if waiter.detached_s is None]
        if attached:
            self._deliver(holding, attached, now)
        elif not holding.is_claimed:
            expected = [w for w in self.queue.of_job(holding.lease.job) if self.queue.is_expected(w, now)]
            if not expected:
                self.end_lease(Ending.UNDONE, "nobody waits for it any more", now)
                return True
            for waiter in expected:
                assert waiter.detached_s is not None
                self.site.look_at(waiter.detached_s + self._common.settings.reattach_s, "reattach")
        return False

    def _unlock_holder(self, holding: Holding, now: float) -> bool:
        """Take what is left to be done until the holder can run on every node; tell whether nothing is."""
        site, job = self.site, holding.lease.job
        is_in_place = True
        for node in site.nodes:
            context = node.context(self.id, job)
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
            self.site.publish("granted", lease.job, duration_s=now - waited_from_s)
        holding.is_claimed = True
        for waiter in waiters:
            for call in waiter.calls:
                self._leave(call)
                holding.calls.add(call)
                self._common.calls[call] = self
                self._out.append(ReplyAcquired(call, lease, now - waiter.arrived_s, holding.has_restored))
            self._remember_request(holding, waiter)
            self._forget(waiter)

    # ------------------------------------------------------------ faults, intruders, leases without session

    def _look_for_faults(self) -> None:
        for job in list(self.site.faults):
            if job not in self.site.new_faults and job not in self.site.jobs() and self.site.is_known:
                del self.site.faults[job]  # its processes are gone: the next ones start without it
                self.ledger.changed()
                self.site.publish("fault_cleared", job)
        for node in self.site.nodes:
            for job, context in node.contexts(self.id).items():
                if context.state is ContextState.FAULTED and job not in self.site.faults:
                    reason = context.reason or "its context is in the driver's FAILED state"
                    self.site.fault(job, f"node {node.id}: {reason}")

    def _act_on_faults(self, now: float) -> None:
        self.ledger.changed()
        for job in self.site.new_faults:
            reason = self.site.faults.get(job, "")
            trouble = self.site.troubles.get(job)
            if trouble is not None:
                trouble.is_repairing = False
            if self.holding is not None and self.holding.lease.job == job:
                self.end_lease(Ending.FAULTED, reason, now)
            for waiter in self.queue.of_job(job):
                for call in waiter.calls:
                    self._refuse(call, texts.job_faulted(job, self.id, reason))
                self._drop(waiter)
        self.site.new_faults.clear()

    def _lock_intruders(self, now: float) -> None:
        """Lock whoever is on the device, unlocked, without the lease and without having been the last to have it."""
        site = self.site
        allowed = self.holding.lease.job if self.holding is not None else site.resident
        for node in site.nodes:
            for job, context in node.contexts(self.id).items():
                if job == allowed or context.state is not ContextState.RUNNING or context.locked:
                    continue
                if job not in self.intruders:
                    self.intruders[job] = now
                    site.publish("intruded", job, node.id)
                if site.can_call(node, job, OperationKind.LOCK, now):
                    self._intruder_locks.add(site.operations.lock(node.id, job, site.token, now).id)
        for job in [job for job in self.intruders if not site.has(job, ContextState.RUNNING)]:
            del self.intruders[job]

    def _is_abandoned(self, holding: Holding, now: float) -> bool:
        """Judge a lease without session by its job's processes; looks again when that could change."""
        settings = self._common.settings
        is_seen = any(True for _ in self.site.contexts_of(holding.lease.job))
        holding.was_seen |= is_seen
        if is_seen or (holding.was_seen and not self.site.is_known):
            holding.unseen_since_s = None
            self._common.timers.cancel(Timer(self.id, "sessionless"))
            return False
        if holding.was_seen and holding.unseen_since_s is None:
            holding.unseen_since_s = now
        if holding.was_seen and holding.unseen_since_s is not None:
            due_s = holding.unseen_since_s + settings.session_ttl_s
        else:
            due_s = holding.since_s + settings.start_grace_s
        if now >= due_s:
            return True
        self._common.timers.set(Timer(self.id, "sessionless"), due_s)
        return False

    # ------------------------------------------------------------ helpers

    def accelerators(self) -> tuple[str, ...]:
        """Return "NODE/ACCELERATOR" of each accelerator of the group, as far as its agents have said."""
        return tuple(
            f"{node.id}/{view.accelerator}" for node in self.site.nodes for view in node.accelerators_of(self.id)
        )

    def _take_over(self, record: GroupRecord, now: float) -> None:
        """Go on where the record stands."""
        self.site.resident = record.resident
        self.site.faults = dict(record.faulted)
        self.site.new_faults = list(self.site.faults)
        self.last_yield = record.last_yield
        self._previous_holder = record.resident
        if record.lease is not None:
            lease = record.lease
            # Whether its reply had left is not known: the job may be at work with it.
            self.holding = Holding(lease, now, has_restored=False, is_recorded=True, is_claimed=True, may_be_known=True)
            self._common.graph.hold(self.id, lease.job)
            if lease.session is not None:
                session = self._common.sessions.restore(
                    lease.session, lease.job, lease.ttl_s, lease.processes, now
                )
                session.groups.add(self.id)
        elif record.intent is not None:
            switch = Switch(self.site, record.intent.job, record.intent.token, now)
            switch.recorded()
            self.switch = switch
            self._common.graph.hold(self.id, switch.target)

    def _refuse_old(self, request: RequestId, job: JobId) -> Refusal | None:
        ended = self.outcomes.of_request(request)
        if ended is not None:
            return texts.request_over(request, ended) if ended.job == job else texts.foreign_request(request, job)
        waiter = self.queue.get(request)
        if waiter is not None and waiter.job != job:
            return texts.foreign_request(request, job)
        return None

    def _refuse_new(self, event: AcquireRequested) -> Refusal | None:
        if event.job in self.site.faults:
            return texts.job_faulted(event.job, self.id, self.site.faults[event.job])
        if self.overlap is not None:
            return texts.overlapping(self.id, self.overlap)
        if self.holding is not None and self.holding.lease.job == event.job:
            return None
        cycle = self._common.graph.cycle(self.id, event.job)
        return texts.cycle(self.id, event.job, cycle) if cycle else None

    def _enqueue(self, event: AcquireRequested, request: RequestId, now: float) -> Waiter:
        self._sequence += 1
        waiter = Waiter(
            group=self.id,
            request=request,
            is_named=event.request is not None,
            job=event.job,
            session=event.session,
            sequence=self._sequence,
            arrived_s=now,
            calls={event.call: now},
            priority=event.priority,
            expected_hold_s=event.expected_hold_s,
            owner=event.owner,
        )
        self.queue.add(waiter)
        self._common.graph.wait(self.id, waiter.job, waiter.sequence)
        session = self._common.sessions.get(event.session) if event.session is not None else None
        if session is not None:
            session.groups.add(self.id)
        is_served_now = self.holding is None and self.switch is None and len(self.queue) == 1 and self.site.is_known
        if not is_served_now:
            self.site.publish("queued", event.job)
            if waiter.is_named:
                waiter.is_recorded = True
                ttl_s = session.ttl_s if session is not None else self._common.settings.session_ttl_s
                self._out.append(RecordWaiter(waiter.record(ttl_s, session.processes if session is not None else ())))
        return waiter

    def _attach_to_lease(self, holding: Holding, event: AcquireRequested, now: float) -> None:
        """Answer with the lease that the job has."""
        holding.calls.add(event.call)
        holding.is_claimed = True
        self._common.calls[event.call] = self
        if event.request is not None and event.request not in holding.lease.requests:
            self._add_request(holding, event.request)
        self._out.append(ReplyAcquired(event.call, holding.lease, 0.0, holding.has_restored))

    def _remember_request(self, holding: Holding, waiter: Waiter) -> None:
        if waiter.is_named and waiter.request not in holding.lease.requests:
            self._add_request(holding, waiter.request)

    def _add_request(self, holding: Holding, request: RequestId) -> None:
        lease = holding.lease
        holding.lease = Lease(
            group=lease.group,
            job=lease.job,
            token=lease.token,
            session=lease.session,
            requests=(*lease.requests, request),
            accelerators=lease.accelerators,
            ttl_s=lease.ttl_s,
            processes=lease.processes,
        )
        self.ledger.changed()

    def _answer_yield(self, call: CallId, ended: EndedLease, now: float) -> None:
        def reply(_: float) -> None:
            self._out.append(ReplyYielded(call, ended.pending_waiters, ended.snapshot_deferred))

        def refuse(_: float) -> None:
            self._out.append(Refuse(call, texts.not_recorded(self.id, self.ledger.failure or "the store is busy")))

        self.ledger.after_recorded(reply, now, refuse)

    def _end_slice(self, call: CallId, now: float) -> None:
        waiter = self._waiters.get(call)
        if waiter is not None:
            self.queue.detach(waiter, call, now)
            self._leave(call)
            self._out.append(ReplyQueued(call))
            if waiter.detached_s is not None:
                self._watch_detached(waiter, now)

    def _watch_detached(self, waiter: Waiter, now: float) -> None:
        settings = self._common.settings
        if not waiter.is_named:
            self._drop(waiter)  # nobody can come back to it
        elif waiter.session is None:
            timer = Timer(self.id, "detached", waiter.request)
            self._common.timers.set(timer, now + settings.detached_grace_s)

    def _is_overdue(self, waiter: Waiter, now: float) -> bool:
        grace_s = self._common.settings.detached_grace_s
        return waiter.session is None and waiter.detached_s is not None and now >= waiter.detached_s + grace_s

    def _drop(self, waiter: Waiter) -> None:
        """A waiter leaves unserved."""
        for call in waiter.calls:
            self._leave(call)
        self._forget(waiter)
        self.site.publish("left", waiter.job)

    def _leave(self, call: CallId) -> None:
        """A call waits no more."""
        self._waiters.pop(call, None)
        self._common.calls.pop(call, None)
        self._common.timers.cancel(Timer(self.id, "slice", str(call)))

    def _forget(self, waiter: Waiter) -> None:
        self.queue.remove(waiter)
        self._common.graph.leave(self.id, waiter.job, waiter.sequence)
        self._common.timers.cancel(Timer(self.id, "detached", waiter.request))
        if waiter.is_recorded:
            self._out.append(ForgetWaiter(self.id, waiter.request))

    def _refuse(self, call: CallId, refusal: Refusal) -> None:
        self._common.calls.pop(call, None)
        self._out.append(Refuse(call, refusal))

    def _stamp(self, now: float) -> None:
        self.state_since_s = now
