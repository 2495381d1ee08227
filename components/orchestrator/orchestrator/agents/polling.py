"""An agent of the old contract, made to look like one of the new: no Watch, no Lock, no ids of ours.

- Its state is asked once a second, and at once when an operation ended; its operations from 20 ms up to 1 s.
- It cannot lock: a context counts as locked when we say so, which binds a co-operative job only.
- It cannot chain operations: a Restore is sent when the Snapshot before it is complete.
- It keeps no deadline: an operation that has not ended in its time is told as indeterminate, and its state asked on.
- It may have no memory: when it has started anew, what it says of a job is doubted (`doubts.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, assert_never

from orchestrator.agents import wire
from orchestrator.agents.calls import AgentError, answer
from orchestrator.agents.doubts import Doubts
from orchestrator.agents.target import AgentTarget, Backoff, LinkSettings
from orchestrator.core.effects import LockContext, QueryOperation, StartRestore, StartSnapshot, UnlockContext
from orchestrator.core.events import (
    AgentCallFailed,
    ContextChanged,
    ContextGone,
    Event,
    Locked,
    OperationEnded,
    OperationPending,
    OperationUnknown,
    Unlocked,
)
from orchestrator.core.types import AgentErrorKind, ContextView, GroupId, JobId, OperationId, OperationResult
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb


@dataclass(slots=True)
class _Operation:
    """One that we started; `id` is the agent's own name for it."""

    id: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    result: OperationResult | None = None


class PolledAgent:
    """Such an agent. What we did to it is remembered across silences; of what it said only how each context stood."""

    def __init__(
        self, target: AgentTarget, stub: Any, settings: LinkSettings, post: Callable[[Event], None]
    ) -> None:
        self._target = target
        self._node = target.node
        self._stub = stub
        self._settings = settings
        self._post = post
        self._groups: dict[JobId, GroupId] = {}
        self._locked: set[tuple[JobId, GroupId]] = set()
        self._operations: dict[OperationId, _Operation] = {}
        self._seen: dict[tuple[JobId, GroupId], ContextView] | None = None
        self._doubts = Doubts()

    def forget_state(self) -> None:
        """It does not answer: what it says next is the whole state again."""
        self._seen = None

    async def run(self) -> NoReturn:
        """Ask for the state once in a while, for ever; ends with the call that failed."""
        while True:
            await asyncio.sleep(self._settings.poll_last_s)
            await self.observe()

    async def observe(self) -> None:
        """Ask for the state, and post what changed."""
        status = await answer(self._stub.Status(pb.StatusRequest(), timeout=self._settings.call_timeout_s))
        told = wire.observed_without_groups(self._target, status, self._groups, self._locked)
        at_s = asyncio.get_running_loop().time()
        now = replace(told, contexts=tuple(self._doubts.judge(context, at_s) for context in told.contexts))
        contexts = {(context.job, context.group): context for context in now.contexts}
        before, self._seen = self._seen, contexts
        if before is None:
            self._post(now)
            return
        for key, context in contexts.items():
            if before.get(key) != context:
                self._post(ContextChanged(self._node, context))
        for job, group in before.keys() - contexts.keys():
            self._locked.discard((job, group))
            self._doubts.gone((job, group))
            self._post(ContextGone(self._node, job, group))

    async def perform(
        self, effect: LockContext | UnlockContext | StartSnapshot | StartRestore | QueryOperation
    ) -> None:
        """Carry one effect out and post what became of it."""
        match effect:
            case LockContext():
                self._locked.add((effect.job, effect.group))
                self._post(Locked(self._node, effect.operation))
            case UnlockContext():
                self._locked.discard((effect.job, effect.group))
                self._post(Unlocked(self._node, effect.operation))
            case StartSnapshot():
                await self._run_operation(effect, self._stub.Snapshot, pb.SnapshotRequest)
            case StartRestore():
                await self._restore(effect)
            case QueryOperation():
                self._query(effect)
            case _:
                assert_never(effect)

    async def _restore(self, effect: StartRestore) -> None:
        before = self._operations.get(effect.after) if effect.after else None
        if before is not None:
            await before.ended.wait()
            if before.result is None or not before.result.complete:
                text = f"operation {effect.after!r} before it did not complete"
                self._post(OperationEnded(
                    self._node, effect.operation, OperationResult(complete=False, rolled_back=True, error=text)))
                return
        await self._run_operation(effect, self._stub.Restore, pb.RestoreRequest)

    async def _run_operation(self, effect: StartSnapshot | StartRestore, start: Any, request_type: Any) -> None:
        operation = self._operations.setdefault(effect.operation, _Operation())
        self._groups[effect.job] = effect.group
        try:
            request = request_type(job_id=effect.job, group=effect.group)
            started = await answer(start(request, timeout=self._settings.call_timeout_s))
            operation.id = started.operation_id
            async with asyncio.timeout(effect.timeout_s):
                operation.result = await self._end_of(operation.id)
        except TimeoutError:
            operation.result = OperationResult(
                complete=False, indeterminate=True, error=f"its agent has not ended it within {effect.timeout_s:g} s")
            self._doubts.operation_lost((effect.job, effect.group))
        except AgentError as error:
            # Once it was started, no error tells how it went on.
            kind = AgentErrorKind.UNANSWERED if operation.id else error.kind
            self._operations.pop(effect.operation, None)
            if kind is AgentErrorKind.UNANSWERED:
                self._doubts.operation_lost((effect.job, effect.group))
            self._post(AgentCallFailed(self._node, effect.operation, kind, str(error)))
            return
        finally:
            operation.ended.set()
        is_locked_after = isinstance(effect, StartSnapshot) or effect.leave_locked
        if is_locked_after and (operation.result.complete or operation.result.indeterminate):
            self._locked.add((effect.job, effect.group))
        if self._seen is not None:
            # If it fails, the next regular question tells that the agent does not answer.
            with contextlib.suppress(AgentError):
                await self.observe()
        self._post(OperationEnded(self._node, effect.operation, operation.result))

    async def _end_of(self, operation_id: str) -> OperationResult:
        backoff = Backoff(self._settings.poll_first_s, self._settings.poll_last_s)
        while True:
            await asyncio.sleep(backoff.next())
            request = pb.GetOperationRequest(operation_id=operation_id)
            told = await answer(self._stub.GetOperation(request, timeout=self._settings.call_timeout_s))
            if told.status != pb.OPERATION_STATUS_PENDING:
                return wire.result(told)

    def _query(self, effect: QueryOperation) -> None:
        operation = self._operations.get(effect.operation)
        if operation is None:
            self._post(OperationUnknown(self._node, effect.operation))
        elif operation.result is None:
            self._post(OperationPending(self._node, effect.operation))
        else:
            self._post(OperationEnded(self._node, effect.operation, operation.result))
