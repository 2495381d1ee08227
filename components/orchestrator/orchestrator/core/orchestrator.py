"""The whole core: hands each event to whom it concerns, and returns what the shell must do."""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import texts
from orchestrator.core.claims import CLAIMS, Claims
from orchestrator.core.common import Common
from orchestrator.core.effects import (
    AnswerSession,
    Effect,
    ForgetNode,
    Refuse,
    ReplyEvicted,
    StepDown,
    WakeAt,
)
from orchestrator.core.events import (
    AcceleratorChanged,
    AcquireRequested,
    AgentCallFailed,
    CallCancelled,
    ContextChanged,
    ContextGone,
    Draining,
    Event,
    EvictRequested,
    GroupConfigured,
    Locked,
    NodeDeleted,
    NodeDisconnected,
    NodeObserved,
    OperationEnded,
    OperationPending,
    OperationUnknown,
    ReadFailed,
    Recorded,
    RecordFailed,
    RecordRead,
    RecordUnclear,
    SessionClosed,
    SessionRenewed,
    SessionStreamLost,
    Started,
    Together,
    Unlocked,
    Woken,
    YieldRequested,
)
from orchestrator.core.evictions import carry_out
from orchestrator.core.group import Group
from orchestrator.core.identifiers import Identifiers
from orchestrator.core.invariants import check_group
from orchestrator.core.nodes import Node
from orchestrator.core.operations import Outcome
from orchestrator.core.sessions import STARVED, Session, Sessions
from orchestrator.core.shares import held_by
from orchestrator.core.timers import Timers
from orchestrator.core.types import (
    CallId,
    CoreSettings,
    Epoch,
    EvictAction,
    GroupConfig,
    GroupId,
    GroupRecord,
    GroupView,
    JobId,
    NodeId,
    Refusal,
    SessionId,
)
from orchestrator.core.views import view_group
from orchestrator.core.wait_graph import WaitGraph


class Orchestrator:
    """One leader's memory of all groups, sessions and nodes. See SWITCH.md for how it is used."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._out: list[Effect] = []
        self._timers = Timers()
        self._nodes: dict[NodeId, Node] = {}
        self._groups: dict[GroupId, Group] = {}
        self._groups_by_node: dict[NodeId, set[GroupId]] = {}
        self._records: dict[GroupId, GroupRecord] = {}
        self._sessions = Sessions(settings, self._nodes, self._timers)
        self._claims = Claims(self._groups, self._timers, settings.claims_wait_s, self._touch)
        self._graph = WaitGraph()
        self._calls: dict[CallId, GroupId] = {}
        self._common: Common | None = None
        self._epoch = Epoch(0)
        self._woken_at: float | None = None
        self._touched: dict[GroupId, None] = {}

    # ------------------------------------------------------------ reading

    def group_ids(self) -> tuple[GroupId, ...]:
        """Return the groups that are configured, in that order."""
        return tuple(self._groups)

    def view(self, group: GroupId, now: float) -> GroupView | None:
        """Return what status shows of a group; None: there is none of that name."""
        known = self._groups.get(group)
        return view_group(known, self._sessions, now) if known is not None else None

    def unsettled(self) -> tuple[GroupId, ...]:
        """Return the groups in which contexts are on the move, or a record is not written yet."""
        return tuple(
            name
            for name, group in self._groups.items()
            if not group.ledger.is_clean
            or len(group.site.operations)
            or (group.switch is not None and group.switch.blocked is None)
        )

    def groups(self) -> tuple[Group, ...]:
        """Return the groups themselves, for checks; not to be changed."""
        return tuple(self._groups.values())

    def has_session(self, session: SessionId) -> bool:
        """Tell whether a session is alive, for checks."""
        return self._sessions.get(session) is not None

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event at `now` (seconds, monotonic clock); return what the shell must do, in that order."""
        self._touched = {}
        self._apply(event, now)
        while self._touched:
            touched, self._touched = self._touched, {}
            for name in touched:
                self._groups[name].settle(now)
                if self._settings.check_invariants:
                    check_group(self._groups[name])
        self._ask_to_be_woken()
        out, self._out[:] = list(self._out), []
        return out

    def _apply(self, event: Event, now: float) -> None:
        match event:  # what comes most often first: each case is a question
            case ContextChanged() | AcceleratorChanged() | NodeObserved() | NodeDisconnected() | ContextGone():
                self._apply_view(event, now)
            case OperationEnded() | Locked() | Unlocked() | OperationPending() | OperationUnknown() | AgentCallFailed():
                self._apply_answer(event, now)
            case Recorded() | RecordFailed() | RecordUnclear() | RecordRead() | ReadFailed():
                self._apply_store(event, now)
            case Together(events):
                for one in events:
                    self._apply(one, now)
            case AcquireRequested():
                self._acquire(event, now)
            case YieldRequested():
                self._give_back(event, now)
            case SessionRenewed() | SessionStreamLost() | SessionClosed():
                self._apply_session(event, now)
            case CallCancelled(call):
                name = self._calls.pop(call, None)
                if name is not None:
                    self._groups[name].cancel(call, now)
                    self._touch(name)
            case EvictRequested():
                self._evict(event, now)
            case Woken():
                self._wake(now)
            case Started():
                self._start(event, now)
            case GroupConfigured(config):
                self._configure(config, now)
            case NodeDeleted(node):
                self._forget_node(node, now)
            case Draining():
                assert self._common is not None, "Started comes first"
                self._common.is_draining = True
            case _:
                assert_never(event)

    # ------------------------------------------------------------ start and time

    def _start(self, event: Started, now: float) -> None:
        assert self._common is None, "Started comes once"
        self._epoch = event.epoch
        self._common = Common(
            self._settings,
            Identifiers(event.epoch, event.run),
            event.epoch,
            self._timers,
            self._out,
            self._nodes,
            self._sessions,
            self._graph,
            self._calls,
        )
        self._records = {record.group: record for record in event.records}
        for config in event.groups:
            self._configure(config, now)
        for ended in event.ended:
            if ended.group in self._groups:
                self._groups[ended.group].leases.outcomes.add(ended, now)
        for waiter in sorted(event.waiters, key=lambda waiter: waiter.sequence):
            if waiter.group in self._groups:
                self._groups[waiter.group].restore_waiter(waiter, now)

    def _configure(self, config: GroupConfig, now: float) -> None:
        assert self._common is not None, "Started comes first"
        for name in config.nodes:
            self._nodes.setdefault(name, Node(name, now))
            self._groups_by_node.setdefault(name, set()).add(config.group)
        known = self._groups.get(config.group)
        if known is None:
            record = self._records.pop(config.group, None)
            self._groups[config.group] = Group(config, record, self._common, now)
        else:
            known.reconfigure(config, now)
        self._touch(config.group)

    def _wake(self, now: float) -> None:
        self._woken_at = None
        for timer in self._timers.take_due(now):
            if timer.group is None and timer.purpose == STARVED:
                self._touch_groups_of(SessionId(timer.subject))
            elif timer.group is None and timer.purpose == CLAIMS:
                self._answer_waiting(now)
            elif timer.group is None:
                self._end_sessions(self._sessions.wake(SessionId(timer.subject), now), now)
            elif timer.group in self._groups:
                self._groups[timer.group].wake(timer, now)
                self._touch(timer.group)

    def _ask_to_be_woken(self) -> None:
        at_s = self._timers.next_at()
        if at_s is not None and at_s != self._woken_at:
            self._woken_at = at_s
            self._out.append(WakeAt(at_s))

    # ------------------------------------------------------------ clients

    def _acquire(self, event: AcquireRequested, now: float) -> None:
        group = self._groups.get(event.group)
        refusal = texts.unknown_group(event.group) if group is None else self._refuse_session(event.session, event.job)
        if group is None or refusal is not None:
            assert refusal is not None
            self._out.append(Refuse(event.call, refusal))
            return
        group.acquire(event, now)
        self._touch(group.id)

    def _give_back(self, event: YieldRequested, now: float) -> None:
        group = self._groups.get(event.group)
        refusal = texts.unknown_group(event.group) if group is None else None
        if refusal is None and event.session is not None and self._sessions.has_ended(event.session):
            refusal = texts.unknown_session(event.session)
        if group is None or refusal is not None:
            assert refusal is not None
            self._out.append(Refuse(event.call, refusal))
            return
        group.give_back(event, now)
        self._touch(group.id)

    def _refuse_session(self, session: SessionId | None, job: JobId) -> Refusal | None:
        if session is None:
            return None
        known = self._sessions.get(session)
        if known is None:
            return texts.unknown_session(session)
        return texts.foreign_session(session, job) if known.job != job else None

    def _apply_session(self, event: SessionRenewed | SessionStreamLost | SessionClosed, now: float) -> None:
        match event:
            case SessionRenewed():
                if self._sessions.starved_since(event.session, now) is not None:
                    self._touch_groups_of(event.session)
                session = self._sessions.renew(event, now)
                if isinstance(session, Refusal):
                    self._out.append(Refuse(event.stream, session))
                    return
                self._claims.hear(event, now)
                self._answer(session, now)
            case SessionStreamLost(stream):
                self._end_sessions(self._sessions.lose_stream(stream, now), now)
            case SessionClosed(stream):
                self._end_sessions(self._sessions.close(stream, now), now)
            case _:
                assert_never(event)

    def _answer(self, session: Session, now: float) -> None:
        """Tell a session what it holds, once for each of its messages, unless that cannot be told yet."""
        answers = self._claims.settle(session, now)
        if not answers:
            return
        assert session.stream is not None
        leases = [
            lease
            for name in sorted(session.groups)
            if (lease := held_by(self._groups[name].holding, session.id)) is not None
        ]
        self._out += [AnswerSession(session.stream, session.id, session.ttl_s, tuple(leases))] * answers

    def _answer_waiting(self, now: float) -> None:
        for name in self._claims.waiting():
            session = self._sessions.get(name)
            if session is not None:
                self._answer(session, now)

    def _touch_groups_of(self, session: SessionId) -> None:
        """What this session's groups show may have changed."""
        known = self._sessions.get(session)
        for name in sorted(known.groups) if known is not None else ():
            self._touch(name)

    def _end_sessions(self, ended: list[Session], now: float) -> None:
        for session in ended:
            self._claims.forget(session.id)
            for name in sorted(session.groups):
                self._groups[name].session_ended(session.id, now)
                self._touch(name)

    def _evict(self, event: EvictRequested, now: float) -> None:
        group = self._groups.get(event.group)
        if group is None:
            self._out.append(Refuse(event.call, texts.unknown_group(event.group)))
            return
        if event.action is EvictAction.FORGET_NODE:
            answer = self._forget_node(event.node, now)
        else:
            answer = carry_out(event.action, event, group, now)
        if isinstance(answer, Refusal):
            self._out.append(Refuse(event.call, answer))
        else:
            self._out.append(ReplyEvicted(event.call, tuple(answer)))
        self._touch(group.id)

    def _forget_node(self, node: NodeId | None, now: float) -> list[str] | Refusal:
        if node is None or node not in self._nodes:
            return texts.unknown_node(node)
        for name in sorted(self._groups_by_node.pop(node, ())):
            self._groups[name].forget_node(node, now)
            self._touch(name)
        del self._nodes[node]
        self._out.append(ForgetNode(node))
        return [f"node {node!r} forgotten"]

    # ------------------------------------------------------------ agents

    def _apply_view(
        self, event: NodeObserved | NodeDisconnected | ContextChanged | ContextGone | AcceleratorChanged, now: float
    ) -> None:
        node = self._nodes.get(event.node)
        if node is None:
            return
        match event:
            case NodeObserved():
                self._observe(node, event, now)
            case NodeDisconnected(_, reason):
                was_connected = node.is_connected
                node.disconnect(reason, now)
                if was_connected:
                    for name in sorted(self._groups_by_node[node.id]):
                        self._groups[name].node_lost(node.id, now)
                        self._touch(name)
                    self._end_sessions(self._sessions.node_changed(node.id, now), now)
            case ContextChanged(_, context):
                node.change(context)
                self._end_sessions(self._sessions.context_changed(context.job, now), now)
                self._touch(context.group)
            case ContextGone(_, job, name):
                node.forget(name, job)
                if name in self._groups:
                    self._note(name, self._groups[name].site.operations.context_gone(node.id, job, now), now)
                self._end_sessions(self._sessions.context_changed(job, now), now)
            case AcceleratorChanged(_, accelerator):
                before = node.accelerators.get(accelerator.accelerator)
                node.change_accelerator(accelerator)
                if before is None or before.groups != accelerator.groups:
                    self._look_for_overlaps()
                for name in accelerator.groups:
                    if name in self._groups and self._groups[name].is_waiting_for_room:
                        self._touch(name)
            case _:
                assert_never(event)

    def _observe(self, node: Node, event: NodeObserved, now: float) -> None:
        was_connected = node.is_connected
        touched = node.observe(event, now) | self._groups_by_node[node.id]
        for fence in event.fences:
            if fence.epoch > self._epoch:
                self._out.append(
                    StepDown(f"node {node.id!r} obeys the orchestrator of epoch {fence.epoch}; ours is {self._epoch}")
                )
                return
        self._look_for_overlaps()
        for name in sorted(touched & self._groups.keys()):
            group = self._groups[name]
            if name in node.fences:
                group.raise_token(node.fences[name].token, now)
            group.node_found(node.id, now, is_new=not was_connected)
            self._touch(name)
        self._answer_waiting(now)
        self._end_sessions(self._sessions.node_changed(node.id, now), now)

    def _look_for_overlaps(self) -> None:
        """Refuse every group that shares an accelerator with one that was configured before it."""
        order = {name: position for position, name in enumerate(self._groups)}
        reasons: dict[GroupId, str] = {}
        for node in self._nodes.values():
            for view in node.accelerators.values():
                owners = sorted((name for name in view.groups if name in order), key=lambda name: order[name])
                for later in owners[1:]:
                    reasons[later] = f"accelerator {node.id}/{view.accelerator} belongs to group {owners[0]!r} too"
        for name, group in self._groups.items():
            group.standing.compare_accelerators()
            if group.overlap != reasons.get(name):
                group.overlap = reasons.get(name)
                self._touch(name)

    def _apply_answer(
        self,
        event: OperationEnded | OperationPending | OperationUnknown | Locked | Unlocked | AgentCallFailed,
        now: float,
    ) -> None:
        assert self._common is not None, "Started comes first"
        name = self._common.ids.owners.get(event.operation)
        if name is None:
            return  # of an earlier epoch, or a repeated message
        operations = self._groups[name].site.operations
        outcome: Outcome | None = None
        match event:
            case OperationEnded(_, operation, result):
                outcome = operations.ended(operation, result, now)
            case OperationPending(_, operation):
                operations.pending(operation, now)
            case OperationUnknown(_, operation):
                outcome = operations.unknown(operation, now)
            case Locked(_, operation):
                outcome = operations.lock_changed(operation, True, now)
            case Unlocked(_, operation):
                outcome = operations.lock_changed(operation, False, now)
            case AgentCallFailed(_, operation, kind, error):
                if not self._groups[name].faults.kill_failed(operation, kind, error, now):
                    outcome = operations.call_failed(operation, kind, error, now)
            case _:
                assert_never(event)
        self._note(name, outcome, now)

    def _note(self, name: GroupId, outcome: Outcome | None, now: float) -> None:
        if outcome is not None:
            self._groups[name].note(outcome, now)
        self._touch(name)

    # ------------------------------------------------------------ store

    def _apply_store(
        self, event: Recorded | RecordFailed | RecordUnclear | RecordRead | ReadFailed, now: float
    ) -> None:
        group = self._groups.get(event.group)
        if group is None:
            return
        match event:
            case Recorded(_, version):
                group.ledger.recorded(version, now)
            case RecordFailed(_, version, reason):
                group.ledger.record_failed(version, reason, now)
            case RecordUnclear(_, version, reason):
                group.ledger.record_unclear(version, reason)
            case RecordRead(_, record):
                group.ledger.record_read(record, now)
            case ReadFailed(_, reason):
                group.ledger.read_failed(reason, now)
            case _:
                assert_never(event)
        self._touch(group.id)

    def _touch(self, name: GroupId) -> None:
        if name in self._groups:
            self._touched[name] = None
