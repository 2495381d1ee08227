"""The operations: one at a time per context, in order of arrival, each after the one that it names."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Set

from snapshot_agent_server.core.admission import Admission
from snapshot_agent_server.core.backend_choice import choose
from snapshot_agent_server.core.commander import Commander
from snapshot_agent_server.core.contexts import Context
from snapshot_agent_server.core.effects import (
    Accept,
    CallDriver,
    Effect,
    ForgetOperation,
    ListMembers,
    PublishOperation,
    RecordOperation,
    Refuse,
    StopProgram,
    TakeSample,
)
from snapshot_agent_server.core.events import Answered, Requested
from snapshot_agent_server.core.fences import Fences
from snapshot_agent_server.core.ids import ContextKey, JobId, OperationId
from snapshot_agent_server.core.modes import Backend
from snapshot_agent_server.core.operations import GONE, Kind, Operation, Phase, Result, Status
from snapshot_agent_server.core.outcomes import DriverState, Verb
from snapshot_agent_server.core.programs import Programs
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.runner import Runner
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.workloads import WorkloadState


class Queue:
    def __init__(
        self,
        settings: CoreSettings,
        registry: Registry,
        admission: Admission,
        fences: Fences,
        incarnation: str,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._admission = admission
        self._fences = fences
        self._runner = Runner(settings, registry)
        self.operations: OrderedDict[OperationId, Operation] = OrderedDict()
        """Those that live, and ended ones for retries."""
        self.active: dict[OperationId, Operation] = {}
        """Waiting or running, in order of arrival."""
        self.commander = Commander(settings, registry, self.active.get, incarnation)
        self._programs = Programs()
        self._lost: OrderedDict[ContextKey, str] = OrderedDict()
        """Saved contexts whose processes ended: a restore of them is refused, never taken for nothing to do."""
        self._own = 0

    def busy(self) -> set[ContextKey]:
        """Contexts that an operation runs on or waits for."""
        return {key for operation in self.active.values() for key in operation.keys}

    def is_moving(self, key: ContextKey) -> bool:
        return any(op.is_running and op.kind.moves_memory and key in op.keys for op in self.active.values())

    def is_brief(self, key: ContextKey, now: float) -> bool:
        """An operation has been moving the context for so short a time that it may be over before anyone is told."""
        return any(
            op.is_running and op.kind.moves_memory and key in op.keys and now < self._told_at(op)
            for op in self.active.values()
        )

    def _told_at(self, operation: Operation) -> float:
        return (operation.started_at or 0.0) + self._settings.quiet_s

    def wake_at(self, now: float) -> float | None:
        times: list[float | None] = []
        for operation in self.active.values():
            if operation.is_running:
                times.append(self._driving(operation).wake_at(operation, now))
                if operation.kind.moves_memory and now < self._told_at(operation):
                    times.append(self._told_at(operation))
            elif not self._programs.promise(operation.id):
                times.append(operation.deadline)
                times.append(operation.list_at if operation.list_at > now else None)
                if operation.after is not None and operation.after not in self.operations:
                    times.append(operation.waiting_since + self._settings.after_wait_s)
        return min((time for time in times if time is not None), default=None)

    def requested(self, event: Requested, keys: tuple[ContextKey, ...], now: float) -> list[Effect]:
        """Put a request that passed the fences in the queue; a known operation id attaches to that operation."""
        known = self.operations.get(event.operation)
        if known is not None:
            if (
                known.kind is not event.kind
                or {k.job for k in known.keys} - {event.job}
                or (event.group is not None and set(known.keys) != set(keys))
            ):
                of = ", ".join(map(str, known.keys)) or "no context"
                text = (
                    f"operation {event.operation!r} is a {known.kind} of {of};"
                    " choose a new operation_id for another request"
                )
                return [Refuse(event.call, Refusal(RefusalKind.OTHER_OPERATION, text))]
            return [Accept(event.call, known.id)]
        if event.wish is not None:
            _, unsupported = choose(event.kind, self._contexts(keys), event.wish)
            if unsupported:
                return [Refuse(event.call, Refusal(RefusalKind.UNSUPPORTED, unsupported))]
        limit = self._settings.operation_timeout_s if event.kind.moves_memory else self._settings.lock_timeout_s
        operation = Operation(
            id=event.operation,
            kind=event.kind,
            keys=keys,
            accepted_at=now,
            deadline=now + (event.timeout_s or limit),
            token=event.token,
            epoch=event.epoch,
            is_left_locked=event.leave_locked,
            after=event.after,
            wish=event.wish,
            waiting_since=now,
            call=None if event.kind.moves_memory else event.call,
        )
        for key in keys:
            if key in self._registry.contexts:
                self._registry.contexts[key].note = ""
        self.active[operation.id] = operation
        effects: list[Effect] = []
        if operation.is_public:
            self.operations[operation.id] = operation
            effects = [RecordOperation(operation), Accept(event.call, operation.id)]
        return effects + self._forget_old(now)

    def repair(self, kind: Kind, key: ContextKey, now: float) -> list[Effect]:
        """Lock an intruder, or unlock whose turn it is, on the agent's own account."""
        context = self._registry.contexts[key]
        if kind is Kind.LOCK:
            context.note = "ran without the lease of its group: locked by the agent until it is unlocked or saved"
        elif kind is Kind.SNAPSHOT:
            context.note = "a process that came when the others were saved was saved by the agent too"
        limit = self._settings.operation_timeout_s if kind.moves_memory else self._settings.lock_timeout_s
        self._own += 1
        operation = Operation(
            id=OperationId(f"agent-{self._own}"),
            kind=kind,
            keys=(key,),
            accepted_at=now,
            deadline=now + limit,
            is_own=True,
        )
        self.active[operation.id] = operation
        return self.advance(now)

    def answered(self, event: Answered, now: float) -> list[Effect]:
        begun = self._programs.answered(event)
        operation = self.active.get(event.operation)
        effects = self._runner.take(operation, event, now) if operation is not None else []
        return effects + self._begun(begun, now) if begun is not None else effects

    def _begun(self, call: CallDriver, now: float) -> list[Effect]:
        """A worker has begun a call by itself: so it is, whatever happened since."""
        operation = self.active.get(call.operation)
        if operation is None:
            return []
        effects = self._start(operation, Backend.CUDA, now) if operation.phase is Phase.WAITING else []
        if call.verb is Verb.UNLOCK and _unlocks(operation):
            effects += self._admission.unlocking(operation)
        work = operation.work.get(call.process)
        if work is not None:
            work.in_flight = call.verb
        return effects

    def listed(self, operation_id: OperationId | None, unplaced: Set[JobId], now: float) -> None:
        """The trees of an operation's contexts were looked through. `unplaced`: jobs with a process that may belong to
        any of their contexts as yet: an operation that could miss it has them looked through again.
        """
        operation = self.active.get(operation_id) if operation_id is not None else None
        if operation is None or not operation.is_listing:
            return
        operation.is_listing = False
        operation.is_listed = not unplaced & {key.job for key in operation.keys}
        operation.listings = 0 if operation.is_listed else operation.listings + 1
        operation.list_at = 0.0 if operation.is_listed else now + self._settings.backoff(operation.listings)

    def lost(self, key: ContextKey, text: str) -> None:
        """A context went while its memory was saved."""
        self._lost[key] = text
        while len(self._lost) > self._settings.kept_operations:
            self._lost.popitem(last=False)

    def found(self, key: ContextKey) -> None:
        """The job is back with new processes."""
        self._lost.pop(key, None)

    def recover(self, operations: Iterable[Operation], now: float) -> None:
        """Take over recorded operations. Those that were under way go on, in their phase, from the driver's states."""
        for operation in operations:
            self.operations[operation.id] = operation
            if not operation.is_ended:
                operation.waiting_since = now
                if operation.is_running:
                    operation.abandoned_at = now
                    if operation.backend is Backend.CUDA:
                        self._runner.doubt(operation, now)
                for work in operation.work.values():
                    work.in_flight = None
                    if operation.kind.moves_memory:
                        # What the earlier agent had asked of the driver last may be under way still.
                        is_snapshot = operation.kind is Kind.SNAPSHOT
                        work.abandoned = Verb.CHECKPOINT if is_snapshot else Verb.RESTORE
                self.active[operation.id] = operation

    def heal(self, keys: Iterable[ContextKey], now: float) -> list[Effect]:
        """After a restart: a Lock of a group without tokens that was cut off in the middle is undone."""
        effects: list[Effect] = []
        for key in list(keys):
            states = self._registry.contexts[key].states()
            is_torn = {DriverState.LOCKED, DriverState.RUNNING} <= states
            if is_torn and key not in self.busy() and key.group not in self._admission.turns:
                effects += self.repair(Kind.UNLOCK, key, now)
        return effects

    def advance(self, now: float) -> list[Effect]:
        """Let every operation go as far as it can. Ends may let others start: until nothing changes any more."""
        effects: list[Effect] = self._hold_back()
        is_changed = True
        while is_changed:
            is_changed = False
            for operation in list(self.active.values()):
                if operation.is_running:
                    more, result = self._drive(operation, now)
                    effects += more
                    if result is not None:
                        effects += self._end(operation, result, now)
                        is_changed = True
                elif operation.phase is Phase.WAITING:
                    started, more = self._try_start(operation, now)
                    effects += more
                    is_changed = is_changed or started
        return self._stops(now) + [self._program(e, now) if isinstance(e, CallDriver) else e for e in effects]

    def _drive(self, operation: Operation, now: float) -> tuple[list[Effect], Result | None]:
        if operation.backend is not Backend.CUDA:
            return self.commander.advance(operation, now)
        is_free = self._admission.is_free(operation)
        is_promised = self._programs.promise(operation.id)
        effects, result = self._runner.advance(operation, now, is_promised=is_promised, is_turn_free=is_free)
        if _unlocks(operation) and any(isinstance(e, CallDriver) and e.verb is Verb.UNLOCK for e in effects):
            effects = [*self._admission.unlocking(operation), *effects]
        return effects, result

    def _hold_back(self) -> list[Effect]:
        """A Restore that was to unlock does not, if somebody has asked for something else since: with a higher token or
        epoch, or for a Lock or Snapshot behind it."""
        effects: list[Effect] = []
        unlocking = [op for op in self.active.values() if op.kind is Kind.RESTORE and not op.is_left_locked]
        for operation in unlocking:
            groups = [key.group for key in operation.keys]
            is_stale = self._fences.check(groups, operation.token, operation.epoch) is not None
            if operation.backend is Backend.CUDA and (is_stale or self._is_stopped_next(operation)):
                operation.is_left_locked = True
                effects += self._admission.held_back(operation)
        return effects

    def _is_stopped_next(self, operation: Operation) -> bool:
        """Whether a Lock or Snapshot waits behind it."""
        later = itertools.dropwhile(lambda other: other is not operation, self.active.values())
        stops = (other for other in later if other.kind in (Kind.LOCK, Kind.SNAPSHOT))
        return any(set(other.keys) & set(operation.keys) for other in stops)

    def _program(self, call: CallDriver, now: float) -> CallDriver:
        """Let a call bring along what follows it for sure."""
        return self._programs.begin(call, self._following(call, now))

    def _stops(self, now: float) -> list[Effect]:
        """What was promised is wanted no more."""
        effects: list[Effect] = []
        for program in self._programs:
            if not program.is_stopped and not program.is_still(self._following(program.call, now)):
                program.is_stopped = True
                effects.append(StopProgram(program.call.process))
        return effects

    def _following(self, call: CallDriver, now: float) -> list[CallDriver]:
        """The calls that come behind this one if all goes well: those of its operation, and if they bring that to its
        end, those of the one that is to follow it.
        """
        operation = self.active.get(call.operation)
        if operation is None or operation.phase is not Phase.FORWARD or call.verb is Verb.STATE:
            return []
        records = (record for record in self._registry.records(operation.keys) if record.id in operation.work)
        is_free = self._admission.is_free(operation)
        calls, is_end = self._runner.following(operation, records, call, now, is_turn_free=is_free)
        next_ = self._successor(operation, now) if is_end else None
        if next_ is not None:
            is_free, known = self._admission.is_free(next_), self._registry.records(next_.keys)
            calls += self._runner.following(next_, known, None, now, is_turn_free=is_free)[0]
        return calls

    def _successor(self, operation: Operation, now: float) -> Operation | None:
        """What would start at once, and without anything on record first, if this operation were complete.

        Only one whose deadline is not earlier, so that it is decided in time whether it starts.
        """
        for other in self.active.values():
            if other.after != operation.id or other.kind is not Kind.RESTORE or other.phase is not Phase.WAITING:
                continue
            if other.deadline < operation.deadline:
                continue
            groups = [key.group for key in other.keys]
            is_free = self._fences.check(groups, other.token, other.epoch) is None
            is_free = is_free and self._blocker(other, now, ended=operation) == ("", "")
            is_free = is_free and choose(other.kind, self._contexts(other.keys), other.wish) == (Backend.CUDA, "")
            is_free = is_free and not self._objection(other) and not self._admission.changes_at(other)
            is_sure = all(record.suspect_until <= now for record in self._registry.records(other.keys))
            return other if is_free and is_sure else None
        return None

    def _try_start(self, operation: Operation, now: float) -> tuple[bool, list[Effect]]:
        """Start an operation, or end it, or leave it waiting: then (False, nothing)."""
        if self._programs.promise(operation.id):
            return False, []
        stale = (
            None
            if operation.is_own
            else self._fences.check([key.group for key in operation.keys], operation.token, operation.epoch)
        )
        if stale is not None:
            return True, self._end(operation, _not_started(operation, stale.text, now), now)
        blocker, error = self._blocker(operation, now)
        if not error and blocker and now >= operation.deadline:
            error = (
                f"{operation.kind} was not started within {operation.deadline - operation.accepted_at:g} s: {blocker}"
            )
        if not error and (operation.is_listing or operation.listings) and now >= operation.deadline:
            of = "the driver did not say which of the job's processes belong to it" if operation.listings else ""
            of = of or "the processes of the tree could not be listed"
            error = f"{operation.kind} was not started in time: {of}"
        if not error and not blocker:
            error = self._objection(operation)
        if error:
            return True, self._end(operation, _not_started(operation, error, now), now)
        if blocker:
            operation.is_listed = False
            return False, []
        if not operation.is_listed and self._needs_listing(operation):
            return self._list(operation) if now >= operation.list_at else (False, [])
        backend, _ = choose(operation.kind, self._contexts(operation.keys), operation.wish)
        return True, self._start(operation, backend, now)

    def _start(self, operation: Operation, backend: Backend, now: float) -> list[Effect]:
        operation.backend = backend
        self._driving(operation).begin(operation, now)
        effects = self._admission.started(operation)
        if operation.is_public:
            # A restore is on record since it was accepted, and the driver says again where its processes stand: its
            # start need not be on disk before the driver is called, which the job on its way back would wait for.
            effects.append(RecordOperation(operation, is_lazy=operation.kind is Kind.RESTORE))
        return effects

    def _needs_listing(self, operation: Operation) -> bool:
        """What is to be stopped or saved must be known to the last process; what comes back is known."""
        stops = operation.kind in (Kind.LOCK, Kind.SNAPSHOT)
        return stops and any(self._registry.is_open(key) for key in operation.keys)

    def _list(self, operation: Operation) -> tuple[bool, list[Effect]]:
        """Have the trees looked through, once; the operation stays WAITING, so that a restart does it again."""
        if operation.is_listing:
            return False, []
        operation.is_listing = True
        ask = tuple(r.id for r in self._registry.records(operation.keys) if r.state is DriverState.NONE)
        jobs = tuple({key.job for key in operation.keys})  # a pod of theirs may come before the listing
        return False, [ListMembers(operation.id, ask=ask, jobs=jobs)]

    def _driving(self, operation: Operation) -> Runner | Commander:
        return self._runner if operation.backend is Backend.CUDA else self.commander

    def _contexts(self, keys: Iterable[ContextKey]) -> list[tuple[ContextKey, Context | None]]:
        return [(key, self._registry.contexts.get(key)) for key in keys]

    def _blocker(self, operation: Operation, now: float, ended: Operation | None = None) -> tuple[str, str]:
        """What the operation waits for, and the error if it waits in vain; if `ended` were complete."""
        if operation.after is not None and (ended is None or operation.after != ended.id):
            before = self.operations.get(operation.after)
            if before is None:
                waited = f"operation {operation.after!r}, which it follows, is not known here"
                return waited, waited if now >= operation.waiting_since + self._settings.after_wait_s else ""
            if before.result is None:
                return f"operation {operation.after!r} is under way", ""
            if before.result.status is not Status.COMPLETE:
                return "", f"operation {operation.after!r}, which it follows, failed: {before.result.error}"
        for other in self.active.values():
            if other is operation:
                break
            if other is ended:
                continue
            if set(other.keys) & set(operation.keys) and other.after != operation.id:
                return f"{other.kind} of the same context is {other.phase}", ""
        for other in self.active.values():
            if other is ended:
                continue
            if other.is_running and other is not operation and set(other.keys) & set(operation.keys):
                return f"{other.kind} of the same context is {other.phase}", ""
            is_moving = operation.kind is Kind.RESTORE and other.is_running and other.kind.moves_memory
            if is_moving and {key.group for key in other.keys} & {key.group for key in operation.keys}:
                named = ", ".join(map(str, other.keys))
                return f"the accelerators are closed while {other.kind} of {named} is {other.phase}", ""
        return "", ""

    def _objection(self, operation: Operation) -> str:
        """Why an operation whose turn it is cannot be done at all, or empty."""
        for key in operation.keys:
            if operation.kind is Kind.RESTORE and key not in self._registry.contexts and key in self._lost:
                return f"{GONE}{self._lost[key]}"
            if operation.kind.moves_memory and self._registry.foreign(key):
                return self._registry.foreign(key)
            context = self._registry.contexts.get(key)
            if operation.kind is Kind.UNLOCK and context is not None and _is_saved(context):
                return f"context {key} is saved, wholly or in part; restore it first"
        return choose(operation.kind, self._contexts(operation.keys), operation.wish)[1]

    def _end(self, operation: Operation, result: Result, now: float) -> list[Effect]:
        """Give the result out: the last one, or that the driver has not said yet, and then the operation goes on."""
        effects: list[Effect] = []
        operation.result = result
        if not result.is_indeterminate:
            operation.phase = Phase.ENDED
            operation.ended_at = now
            for record in self._registry.records(operation.keys):
                record.left_as = record.state
            del self.active[operation.id]
            if result.status is Status.FAILED and not result.is_gone:
                effects += self._admission.failed(operation)
            elif operation.is_own:
                self._admission.mended(operation.keys[0])
            elif result.status is Status.COMPLETE and _unlocks(operation):
                effects += self._admission.unlocking(operation)
            effects.append(TakeSample())
        if operation.is_public:
            effects.append(RecordOperation(operation, is_lazy=True))
            effects.append(PublishOperation(operation.id, operation.keys, operation.kind, result))
        if operation.call is not None:
            effects.append(_reply(operation, operation.call, result, self._registry))
            operation.call = None
        return effects

    def _forget_old(self, now: float) -> list[Effect]:
        """Drop ended operations that are too old, or too many; the oldest come first."""
        doomed: list[OperationId] = []
        for operation in self.operations.values():
            if operation.ended_at is None:
                continue
            is_old = operation.ended_at < now - self._settings.kept_for_s
            if not is_old and len(self.operations) - len(doomed) <= self._settings.kept_operations:
                break
            doomed.append(operation.id)
        for operation_id in doomed:
            del self.operations[operation_id]
        return [ForgetOperation(operation_id) for operation_id in doomed]


def _not_started(operation: Operation, error: str, now: float) -> Result:
    return Result(
        Status.FAILED,
        elapsed_ms=round((now - operation.accepted_at) * 1000),
        error=error,
        is_rolled_back=not error.startswith(GONE),
        is_gone=error.startswith(GONE),
    )


def _unlocks(operation: Operation) -> bool:
    """Whether it is a Restore of the driver's that begins a turn when it unlocks."""
    is_forward = operation.phase is not Phase.ROLLBACK
    is_of_driver = operation.kind is Kind.RESTORE and operation.backend is Backend.CUDA
    return is_forward and is_of_driver and not operation.is_left_locked


def _is_saved(context: Context) -> bool:
    workload = context.workload
    is_saved_by_itself = workload is not None and workload.state is WorkloadState.SAVED
    return is_saved_by_itself or DriverState.CHECKPOINTED in context.states()


def _reply(operation: Operation, call: int, result: Result, registry: Registry) -> Effect:
    """The answer to a Lock or Unlock call."""
    if result.status is Status.COMPLETE or result.is_gone:
        locked = [r.id.pid for r in registry.records(operation.keys) if r.state is DriverState.LOCKED]
        return Accept(call, locked_pids=tuple(sorted(locked)))
    kind = RefusalKind.NOT_DONE
    if result.is_indeterminate:
        kind = RefusalKind.INDETERMINATE
    elif operation.is_timeout:
        kind = RefusalKind.TIMED_OUT
    elif operation.work and not result.is_rolled_back:
        kind = RefusalKind.INDETERMINATE
    return Refuse(call, Refusal(kind, result.error))
