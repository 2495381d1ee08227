"""The calls to agents that one group has under way: at most one per context, each with a deadline, none forgotten.

However a call ends (answered, pushed, asked for after a silence, lost), the end comes out as one `Outcome`, and the
view of the context says the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from orchestrator.core.effects import (
    Effect,
    KillContext,
    LockContext,
    QueryOperation,
    StartRestore,
    StartSnapshot,
    UnlockContext,
)
from orchestrator.core.identifiers import Identifiers
from orchestrator.core.nodes import Node
from orchestrator.core.timers import Timer, Timers
from orchestrator.core.types import (
    AgentErrorKind,
    ContextState,
    ContextView,
    CoreSettings,
    Epoch,
    GroupId,
    JobId,
    NodeId,
    OperationId,
    OperationResult,
    Token,
)

PAUSE_FIRST_S = 0.25
PAUSE_LAST_S = 5.0


class OperationKind(StrEnum):
    """What an agent is asked to do with a context."""

    LOCK = "lock"
    UNLOCK = "unlock"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"


class End(StrEnum):
    """How an operation ended, as far as the switch needs to know."""

    DONE = "done"
    FAILED = "failed"
    """It was tried and did not succeed; the view says how the context stands."""
    INDETERMINATE = "indeterminate"
    """The driver has not said; the view shows TRANSITIONING until it does."""
    GONE = "gone"
    """The context is absent now."""
    LOST = "lost"
    """It did not happen, or nobody can tell: look again and decide anew. No attempt of anybody's."""
    STALE = "stale"
    """The agent has seen a higher token or epoch than this call's; nothing was done."""


@dataclass(slots=True)
class Operation:
    """One call under way."""

    id: OperationId
    kind: OperationKind
    node: NodeId
    job: JobId
    token: Token
    started_s: float
    before: ContextView | None
    after: OperationId | None = None
    leave_locked: bool = True
    """Of a restore: False, it lets the job on."""
    deadline_s: float = 0.0
    is_voided: bool = False
    """The operation that it was to follow did not complete, so it cannot start."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an operation."""

    operation: Operation
    end: End
    error: str = ""
    result: OperationResult | None = None


class Operations:
    """One group's calls to agents. `token` and `epoch` go with every one of them."""

    def __init__(
        self,
        group: GroupId,
        settings: CoreSettings,
        ids: Identifiers,
        timers: Timers,
        out: list[Effect],
        nodes: dict[NodeId, Node],
        epoch: Epoch,
    ) -> None:
        self._group = group
        self._settings = settings
        self._ids = ids
        self._timers = timers
        self._out = out
        self._nodes = nodes
        self._epoch = epoch
        self._by_context: dict[tuple[NodeId, JobId], Operation] = {}
        self._by_id: dict[OperationId, Operation] = {}
        self._pauses: dict[NodeId, tuple[float, int]] = {}
        self._kills: dict[tuple[NodeId, JobId], OperationId] = {}
        """The newest kill of each context: it has no answer but a failure, or that the context is gone."""
        self.silent_since: dict[NodeId, float] = {}
        """Nodes that are connected and leave calls of this group unanswered, and since when."""

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, node: NodeId, job: JobId) -> Operation | None:
        """Return what is under way for a context; None: nothing."""
        return self._by_context.get((node, job))

    def on(self, node: NodeId) -> list[Operation]:
        """Return what is under way on a node."""
        return [operation for operation in self._by_id.values() if operation.node == node]

    def is_under_way(self, operation: OperationId) -> bool:
        """Tell whether this operation has not ended, as far as is known."""
        return operation in self._by_id

    def can_call(self, node: NodeId, now: float) -> bool:
        """Tell whether a new call to this node's agent makes sense now."""
        return self._nodes[node].is_connected and now >= self._pauses.get(node, (0.0, 0))[0]

    def lock(self, node: NodeId, job: JobId, token: Token, now: float) -> Operation:
        """Ask for a lock on a context."""
        return self._ask(LockContext, OperationKind.LOCK, node, job, token, self._settings.lock_timeout_s, now)

    def unlock(self, node: NodeId, job: JobId, token: Token, now: float) -> Operation:
        """Ask for the end of a context's lock."""
        return self._ask(UnlockContext, OperationKind.UNLOCK, node, job, token, self._settings.lock_timeout_s, now)

    def save(self, node: NodeId, job: JobId, token: Token, now: float) -> Operation:
        """Ask for a snapshot of a context."""
        timeout_s = self._settings.operation_timeout_s
        return self._ask(StartSnapshot, OperationKind.SNAPSHOT, node, job, token, timeout_s, now)

    def kill(self, node: NodeId, job: JobId, token: Token, reason: str) -> None:
        """Ask for the end of a context's processes. That needs no room among the calls: it waits for none of them."""
        self._forget_kill(node, job)
        operation = self._kills[(node, job)] = self._ids.operation("kill")
        self._ids.owners[operation] = self._group
        self._out.append(
            KillContext(
                node=node,
                operation=operation,
                group=self._group,
                job=job,
                token=token,
                epoch=self._epoch,
                reason=reason,
            )
        )

    def lets_on(self, job: JobId) -> bool:
        """Tell whether a restore is under way that lets the job on: it may run at any moment."""
        return any(operation.job == job and not operation.leave_locked for operation in self._by_id.values())

    def bring(
        self,
        node: NodeId,
        job: JobId,
        token: Token,
        now: float,
        *,
        after: Operation | None = None,
        leave_locked: bool = True,
    ) -> Operation:
        """Ask for the restore of a context; `after`: once that operation is complete; `leave_locked`: else its agent
        unlocks it too, unless it knows by then that this is not wanted any more."""
        timeout_s = self._settings.operation_timeout_s
        allowed_s = timeout_s if after is None else 2.0 * timeout_s
        operation = self._start(OperationKind.RESTORE, node, job, token, allowed_s, now)
        operation.after = after.id if after is not None else None
        operation.leave_locked = leave_locked
        self._out.append(
            StartRestore(
                node=node,
                operation=operation.id,
                group=self._group,
                job=job,
                token=token,
                epoch=self._epoch,
                timeout_s=timeout_s,
                after=operation.after,
                leave_locked=leave_locked,
            )
        )
        return operation

    # ------------------------------------------------------------ ends

    def ended(self, id_: OperationId, result: OperationResult, now: float) -> Outcome | None:
        """A Snapshot or Restore ended; None: it is not under way (a repeated message)."""
        operation = self._by_id.get(id_)
        if operation is None or operation.kind not in (OperationKind.SNAPSHOT, OperationKind.RESTORE):
            return None
        self._answered(operation.node)
        outcome = self._outcome(operation, result)
        self._finish(operation, outcome.end, now)
        return outcome

    def lock_changed(self, id_: OperationId, is_locked: bool, now: float) -> Outcome | None:
        """A Lock or Unlock succeeded; None: it is not under way."""
        operation = self._by_id.get(id_)
        wanted = OperationKind.LOCK if is_locked else OperationKind.UNLOCK
        if operation is None or operation.kind is not wanted:
            return None
        self._answered(operation.node)
        view = self._view(operation)
        if view is not None and view is operation.before:  # else its agent has said more since
            self._nodes[operation.node].conclude(replace(view, locked=is_locked))
        self._finish(operation, End.DONE, now)
        return Outcome(operation, End.DONE)

    def call_failed(self, id_: OperationId, kind: AgentErrorKind, error: str, now: float) -> Outcome | None:
        """A call did not succeed; None: it is not under way, or its end is still to be found out."""
        operation = self._by_id.get(id_)
        if operation is None:
            return None
        if kind is not AgentErrorKind.UNANSWERED:
            self._answered(operation.node)
        match kind:
            case AgentErrorKind.UNANSWERED:
                return self._unanswered(operation, error, now)
            case AgentErrorKind.REFUSED | AgentErrorKind.UNSUPPORTED:
                end = End.LOST if self._follows_failure(operation) else End.FAILED
                self._finish(operation, end, now)
                return Outcome(operation, end, error)
            case AgentErrorKind.GONE:
                self._forget(operation)
                self._finish(operation, End.GONE, now)
                return Outcome(operation, End.GONE, error)
            case AgentErrorKind.STALE:
                self._finish(operation, End.STALE, now)
                return Outcome(operation, End.STALE, error)
            case _:
                assert_never(kind)

    def pending(self, id_: OperationId, now: float) -> None:
        """The agent still works on it."""
        operation = self._by_id.get(id_)
        if operation is not None:
            self._answered(operation.node)
            self._set_deadline(operation, self._settings.operation_timeout_s + self._settings.answer_margin_s, now)

    def unknown(self, id_: OperationId, now: float) -> Outcome | None:
        """The agent knows no such operation: the call was lost, or the agent has started anew."""
        operation = self._by_id.get(id_)
        if operation is None:
            return None
        self._answered(operation.node)
        self._finish(operation, End.LOST, now)
        return Outcome(operation, End.LOST, "the agent knows no such operation")

    def take_kill(self, id_: OperationId) -> tuple[NodeId, JobId] | None:
        """Return whose end was asked for by the newest kill of this id, and forget it; None: there is none."""
        context = next((context for context, kill in self._kills.items() if kill == id_), None)
        if context is not None:
            self._forget_kill(*context)
        return context

    def context_gone(self, node: NodeId, job: JobId, now: float) -> Outcome | None:
        """The context of an operation is absent now, so nothing else can become of it."""
        self._forget_kill(node, job)
        operation = self._by_context.get((node, job))
        if operation is None:
            return None
        self._finish(operation, End.GONE, now)
        return Outcome(operation, End.GONE, "the context's processes have ended")

    def node_observed(self, node: NodeId, now: float) -> list[Outcome]:
        """An agent is heard again, with its whole state: ask for what was under way, and give up unanswered locks."""
        self._answered(node)
        lost: list[Outcome] = []
        for operation in self.on(node):
            if operation.kind in (OperationKind.SNAPSHOT, OperationKind.RESTORE):
                self._out.append(QueryOperation(node, operation.id))
                self._set_deadline(operation, self._settings.answer_margin_s, now)
            else:
                self._finish(operation, End.LOST, now)
                lost.append(Outcome(operation, End.LOST, "the agent's stream broke"))
        return lost

    def deadline_passed(self, id_: OperationId, now: float) -> Outcome | None:
        """An operation has neither ended in time nor was its last query answered."""
        operation = self._by_id.get(id_)
        if operation is None:
            return None
        if not self._nodes[operation.node].is_connected:
            return None  # `node_observed` asks when it is back
        if operation.kind in (OperationKind.SNAPSHOT, OperationKind.RESTORE):
            self._out.append(QueryOperation(operation.node, operation.id))
            self._set_deadline(operation, self._settings.answer_margin_s, now)
            self._is_silent(operation.node, now)
            return None
        return self._unanswered(operation, "no answer in time", now)

    def forget_node(self, node: NodeId, now: float) -> list[Outcome]:
        """A node is gone for good, and with it what was under way there."""
        gone = self.on(node)
        for killed_on, job in list(self._kills):
            if killed_on == node:
                self._forget_kill(node, job)
        for operation in gone:
            self._finish(operation, End.GONE, now)
        self._pauses.pop(node, None)
        self.silent_since.pop(node, None)
        return [Outcome(operation, End.GONE, "the node is gone for good") for operation in gone]

    # ------------------------------------------------------------ helpers

    def _forget_kill(self, node: NodeId, job: JobId) -> None:
        kill = self._kills.pop((node, job), None)
        if kill is not None:
            del self._ids.owners[kill]

    def _ask(
        self,
        effect: type[LockContext | UnlockContext | StartSnapshot],
        kind: OperationKind,
        node: NodeId,
        job: JobId,
        token: Token,
        timeout_s: float,
        now: float,
    ) -> Operation:
        operation = self._start(kind, node, job, token, timeout_s, now)
        self._out.append(
            effect(
                node=node,
                operation=operation.id,
                group=self._group,
                job=job,
                token=token,
                epoch=self._epoch,
                timeout_s=timeout_s,
            )
        )
        return operation

    def _start(
        self, kind: OperationKind, node: NodeId, job: JobId, token: Token, timeout_s: float, now: float
    ) -> Operation:
        assert (node, job) not in self._by_context, f"{kind} of {job} on {node}: another operation is under way"
        before = self._nodes[node].context(self._group, job)
        operation = Operation(self._ids.operation(kind), kind, node, job, token, now, before)
        self._by_context[(node, job)] = operation
        self._by_id[operation.id] = operation
        self._ids.owners[operation.id] = self._group
        self._set_deadline(operation, timeout_s + self._settings.answer_margin_s, now)
        return operation

    def _finish(self, operation: Operation, end: End, now: float) -> None:
        del self._by_id[operation.id]
        del self._ids.owners[operation.id]
        del self._by_context[(operation.node, operation.job)]
        self._timers.cancel(Timer(self._group, "operation", operation.id))
        for other in self._by_id.values():
            if other.after == operation.id:
                other.is_voided = end is not End.DONE
                self._set_deadline(other, self._settings.operation_timeout_s + self._settings.answer_margin_s, now)

    def _outcome(self, operation: Operation, result: OperationResult) -> Outcome:
        node = self._nodes[operation.node]
        view = self._view(operation)
        if result.gone or view is None:
            self._forget(operation)
            return Outcome(operation, End.GONE, result.error, result)
        if result.complete:
            is_snapshot = operation.kind is OperationKind.SNAPSHOT
            state = ContextState.SAVED if is_snapshot else ContextState.RUNNING
            is_empty = is_snapshot and view.state is ContextState.IDLE  # the agent looked, and found nothing to save
            if (view is operation.before or view.state is ContextState.TRANSITIONING) and not is_empty:
                is_locked = is_snapshot or (operation.leave_locked and view.can_be_locked)
                node.conclude(replace(view, state=state, locked=is_locked))
            return Outcome(operation, End.DONE, result=result)
        if result.indeterminate:
            if view is operation.before:  # else the agent has pushed a state since the start, which is newer
                node.conclude(replace(view, state=ContextState.TRANSITIONING, reason=result.error))
            return Outcome(operation, End.INDETERMINATE, result.error, result)
        if result.rolled_back and operation.before is not None and view.state is ContextState.TRANSITIONING:
            node.conclude(replace(view, state=operation.before.state, locked=operation.before.locked))
        if self._follows_failure(operation):
            return Outcome(operation, End.LOST, result.error, result)
        return Outcome(operation, End.FAILED, result.error, result)

    def _follows_failure(self, operation: Operation) -> bool:
        """A chained restore fails with the snapshot before it, whichever end is heard of first."""
        return operation.is_voided or (operation.after is not None and operation.after in self._by_id)

    def _unanswered(self, operation: Operation, error: str, now: float) -> Outcome | None:
        node = operation.node
        self._is_silent(node, now)
        failures = self._pauses.get(node, (0.0, 0))[1]
        until_s = now + self._ids.jitter() * min(PAUSE_LAST_S, PAUSE_FIRST_S * 2.0 ** min(failures, 10))
        self._pauses[node] = (until_s, failures + 1)
        self._timers.set(Timer(self._group, "look", node), until_s)
        if operation.kind in (OperationKind.SNAPSHOT, OperationKind.RESTORE):
            self._set_deadline(operation, until_s - now, now)  # then it is asked for
            return None
        self._finish(operation, End.LOST, now)
        return Outcome(operation, End.LOST, error)

    def _is_silent(self, node: NodeId, now: float) -> None:
        since_s = self.silent_since.setdefault(node, now)
        at_s = since_s + self._settings.unreachable_after_s
        if at_s > now:
            self._timers.set(Timer(self._group, "look", f"silence/{node}"), at_s)

    def _answered(self, node: NodeId) -> None:
        self._pauses.pop(node, None)
        self.silent_since.pop(node, None)

    def _set_deadline(self, operation: Operation, after_s: float, now: float) -> None:
        operation.deadline_s = now + after_s
        self._timers.set(Timer(self._group, "operation", operation.id), operation.deadline_s)

    def _forget(self, operation: Operation) -> None:
        """Believe that the context is absent, unless its agent has said something of it since: the job may have new
        processes, and a context that ended is reported as gone by itself."""
        if self._view(operation) is operation.before:
            self._nodes[operation.node].forget(self._group, operation.job)

    def _view(self, operation: Operation) -> ContextView | None:
        return self._nodes[operation.node].context(self._group, operation.job)
