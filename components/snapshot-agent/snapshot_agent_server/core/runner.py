"""Drives one operation: starts its driver calls, takes their outcomes, and goes back when it cannot go on.

Holds no state of its own: an operation and the processes' records say all, so that an operation which the agent's end
cut off goes on from the same data after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from snapshot_agent_server.core.contexts import ProcessRecord, failed_text
from snapshot_agent_server.core.effects import Ahead, CallDriver, Effect, RecordProcess
from snapshot_agent_server.core.events import Answered
from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.operations import RETURNABLE, Kind, Operation, Phase, Result, Status, Work
from snapshot_agent_server.core.outcomes import (
    RESULT_OF,
    Abandoned,
    Code,
    Done,
    DriverState,
    Gone,
    NoRoom,
    Outcome,
    Refused,
    Stopped,
    Verb,
)
from snapshot_agent_server.core.plan import Reached, Step, Steps, plan
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.room import no_room_text
from snapshot_agent_server.core.settings import CoreSettings

FOLLOWING = (Verb.CHECKPOINT, Verb.RESTORE, Verb.UNLOCK)
"""What a worker may begin by itself: calls whose outcome, if it is the right one, says where the process is."""


class Runner:
    def __init__(self, settings: CoreSettings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry

    def begin(self, operation: Operation, now: float) -> None:
        operation.phase = Phase.FORWARD
        operation.started_at = now
        self.doubt(operation, now)
        for record in self._registry.records(operation.keys):
            before = record.state if record.state.is_settled else DriverState.UNKNOWN
            operation.work[record.id] = Work(before)

    def doubt(self, operation: Operation, now: float) -> None:
        """Have the driver asked again: who may have started CUDA since, and whom an abandoned call may have moved."""
        for record in self._registry.records(operation.keys):
            is_new = record.state is DriverState.NONE and operation.kind in (Kind.SNAPSHOT, Kind.LOCK)
            is_new = is_new and not operation.is_listed  # then the driver was asked a moment ago
            if is_new or record.suspect_until > now:
                record.state = DriverState.UNKNOWN

    def advance(
        self, operation: Operation, now: float, *, is_promised: bool = False, is_turn_free: bool = False
    ) -> tuple[list[Effect], Result | None]:
        """What to do next, and the result if there is one now: the last, or that it is indeterminate so far.

        `is_promised`: a worker may begin its next call by itself, so that none is to be made before that is known.
        `is_turn_free`: it is nobody's turn in its groups, or was before it began one, or the job's own.
        """
        records = self._records(operation)
        if operation.work and not records:
            named = ", ".join(str(process.pid) for process in operation.work)
            return [], self._result(operation, now, f"gone: process {named} ended", is_gone=True)
        in_flight = any(work.in_flight is not None for work in operation.work.values())
        if operation.phase is Phase.FORWARD:
            if any(record.state is DriverState.FAILED for record in records):
                pids = [record.id.pid for record in records if record.state is DriverState.FAILED]
                self.go_back(operation, failed_text(operation.keys[0], pids))
            elif now >= operation.deadline and not in_flight and not self._is_at_target(operation, records):
                self.go_back(operation, _deadline_text(operation), is_timeout=True)
        is_late = operation.phase is Phase.ROLLBACK and operation.is_timeout and not in_flight
        if is_late and self._is_at_target(operation, records):
            return [], self._result(operation, now)
        match plan(operation, records, now):
            case Reached():
                if operation.phase is Phase.FORWARD:
                    return [], self._result(operation, now)
                return [], self._result(operation, now, operation.error, is_rolled_back=self._is_back(operation))
            case Steps(steps) if not is_promised:
                calls: list[Effect] = []
                for step in steps:
                    operation.work[step.process].in_flight = step.verb
                    calls.append(self._call(operation, step, now, is_turn_free=is_turn_free))
                return calls, self._early_result(operation, records, now)
            case _:
                return [], self._early_result(operation, records, now)

    def following(
        self,
        operation: Operation,
        records: Iterable[ProcessRecord],
        first: CallDriver | None,
        now: float,
        *,
        is_turn_free: bool,
    ) -> tuple[list[CallDriver], bool]:
        """The calls that come one by one behind `first` (None: from where the processes are) if each does what it
        shall, and whether the operation is at its end then. No unlock, unless its turn may be put on record while it is
        made. Changes nothing.
        """
        calls: list[CallDriver] = []
        records = list(records)
        assumed = {first.process: RESULT_OF[first.verb]} if first is not None else {}
        while True:
            match plan(operation, records, now, assumed):
                case Reached():
                    return calls, True
                case Steps((step,)) if step.verb in FOLLOWING and (is_turn_free or step.verb is not Verb.UNLOCK):
                    calls.append(replace(self._call(operation, step, now), not_after=operation.deadline))
                    assumed[step.process] = RESULT_OF[step.verb]
                case _:
                    return calls, False

    def wake_at(self, operation: Operation, now: float) -> float | None:
        """When `advance` must be called again if nothing happens before."""
        settings = self._settings
        times = [operation.deadline, self._indeterminate_at(operation)]
        times.append(operation.deadline + settings.rollback_timeout_s)
        times += [work.retry_at for work in operation.work.values() if work.in_flight is None]
        return min((time for time in times if time > now), default=None)

    def take(self, operation: Operation, answer: Answered, now: float) -> list[Effect]:
        """Apply the outcome of a driver call to the process's record. `Gone` is the caller's."""
        work = operation.work.get(answer.process)
        record = self._registry.record(answer.process)
        if work is None or work.in_flight is not answer.verb:
            return []
        work.in_flight = None
        if record is None:
            return []
        return self._apply(operation, work, record, answer.verb, answer.outcome, now)

    def go_back(self, operation: Operation, error: str, is_timeout: bool = False) -> None:
        """Give up the way forward: every process returns to where it was before."""
        if operation.phase is not Phase.FORWARD:
            return
        operation.phase = Phase.ROLLBACK
        operation.error = error
        operation.is_timeout = is_timeout
        for work in operation.work.values():
            work.attempts = work.asks = 0
            work.retry_at = 0.0

    # -- helpers, in the order of use

    def _records(self, operation: Operation) -> list[ProcessRecord]:
        found = (self._registry.record(process) for process in operation.work)
        return [record for record in found if record is not None]

    def _is_at_target(self, operation: Operation, records: list[ProcessRecord]) -> bool:
        return all(
            record.state is DriverState.NONE
            or (record.state.is_settled and record.state is operation.target(record.state))
            for record in records
        )

    def _is_back(self, operation: Operation) -> bool:
        return all(
            record.state is operation.work[record.id].before
            for record in self._records(operation)
            if operation.work[record.id].before in RETURNABLE
        )

    def _indeterminate_at(self, operation: Operation) -> float:
        """Past its deadline, and with time for the driver to answer after a call was abandoned."""
        return max(operation.deadline, operation.abandoned_at or 0.0) + self._settings.grace_s

    def _early_result(self, operation: Operation, records: list[ProcessRecord], now: float) -> Result | None:
        """Past the deadline, while the operation is not over: does the caller get an answer now?"""
        settings = self._settings
        in_flight = any(work.in_flight is not None for work in operation.work.values())
        is_unsettled = any(not record.state.is_settled for record in records)
        if operation.abandoned_at is not None or is_unsettled:
            if now >= self._indeterminate_at(operation) and operation.result is None:
                named = ", ".join(str(record.id.pid) for record in records)
                text = (
                    f"{operation.error or _deadline_text(operation)}; the driver has not said how it ended for process"
                    f" {named}: the context stays in transition and its accelerators closed until it does."
                )
                return self._result(operation, now, text, is_indeterminate=True)
            return None
        is_over = now >= operation.deadline + settings.rollback_timeout_s
        if operation.phase is Phase.ROLLBACK and not in_flight and is_over:
            return self._result(operation, now, f"{operation.error}; the way back failed too")
        return None

    def _result(
        self,
        operation: Operation,
        now: float,
        error: str = "",
        *,
        is_rolled_back: bool = False,
        is_indeterminate: bool = False,
        is_gone: bool = False,
    ) -> Result:
        records = self._records(operation)
        moved: int = 0
        if not error and operation.kind is Kind.SNAPSHOT:
            moved = sum(sum(record.saved.values()) for record in records)
        elif not error and operation.kind is Kind.RESTORE:
            moved = sum(sum(record.usage.values()) for record in records)
        return Result(
            status=Status.FAILED if error else Status.COMPLETE,
            device_bytes=moved,
            elapsed_ms=round((now - operation.accepted_at) * 1000),
            error=error,
            is_rolled_back=is_rolled_back,
            is_indeterminate=is_indeterminate,
            is_gone=is_gone,
            step_us=dict(operation.step_us),
        )

    def _call(
        self, operation: Operation, step: Step, now: float, *, is_turn_free: bool = False
    ) -> CallDriver:
        settings = self._settings
        is_forward = operation.phase is not Phase.ROLLBACK
        left = max(operation.deadline - now, 0.05) if is_forward else settings.operation_timeout_s
        lock_s = 0.0
        match step.verb:
            case Verb.STATE:
                timeout = settings.state_timeout_s
            case Verb.LOCK:
                lock_s = (
                    min(left, settings.lock_timeout_s) if operation.kind is not Kind.LOCK or not is_forward else left
                )
                timeout = lock_s + settings.lock_grace_s
            case Verb.UNLOCK:
                timeout = settings.unlock_timeout_s
            case Verb.CHECKPOINT | Verb.RESTORE:
                timeout = left
        accelerators: tuple[AcceleratorId, ...] = ()
        if step.verb is Verb.CHECKPOINT:
            record = self._registry.record(step.process)
            key = self._registry.key_of(step.process.pid)
            seen = record.seen_on if record is not None else frozenset()
            accelerators = tuple({*seen, *(self._registry.groups.members(key.group) if key is not None else ())})
        return CallDriver(
            operation=operation.id,
            process=step.process,
            verb=step.verb,
            timeout_s=timeout,
            lock_timeout_ms=max(1, round(lock_s * 1000)) if step.verb is Verb.LOCK else 0,
            accelerators=accelerators,
            need=step.need,
            # On the way back the memory was its own a moment ago.
            margin=settings.restore_margin_bytes if is_forward else 0,
            ahead_of=_ahead_of(operation, step.verb, is_turn_free) if is_forward else Ahead.NOTHING,
        )

    def _apply(
        self, operation: Operation, work: Work, record: ProcessRecord, verb: Verb, outcome: Outcome, now: float
    ) -> list[Effect]:
        pid = record.id.pid
        match outcome:
            case Done():
                operation.step_us[verb] = operation.step_us.get(verb, 0) + outcome.took_us
                state = outcome.state if verb is Verb.STATE else RESULT_OF[verb]
                record.settle(state, now, outcome.usage)
                if not state.is_settled:
                    self._again(operation, work, f"process {pid} is still {state}", now, is_patient=True)
                    return []
                if work.before is DriverState.UNKNOWN:
                    work.before = state
                work.asks = 0
                if verb is not Verb.STATE:
                    work.attempts = 0
                    work.abandoned = None
                elif not work.is_open(state):
                    work.abandoned = None
                key = self._registry.key_of(pid)
                if verb in (Verb.CHECKPOINT, Verb.RESTORE) and key is not None:
                    return [RecordProcess(record.id, key, dict(record.usage), dict(record.saved), is_lazy=True)]
            case Refused():
                operation.step_us[verb] = operation.step_us.get(verb, 0) + outcome.took_us
                self._refused(operation, work, record, verb, outcome, now)
            case NoRoom(short):
                text = no_room_text(record.id.pid, short, self._registry)
                self._again(operation, work, text, now)
            case Stopped(how):
                text = (
                    f"process {pid} is {how}: the driver's {verb} would hang; continue it (kill -CONT {pid}) or end it"
                )
                if operation.phase is Phase.FORWARD:
                    self.go_back(operation, text)
                else:
                    self._again(operation, work, text, now)
            case Abandoned(reason):
                self._abandoned(operation, work, record, verb, reason, now)
            case Gone():
                pass
        return []

    def _refused(
        self, operation: Operation, work: Work, record: ProcessRecord, verb: Verb, refused: Refused, now: float
    ) -> None:
        pid = record.id.pid
        text = f"{verb} of process {pid}: {refused.name} ({refused.code})"
        if verb is not Verb.STATE:
            work.abandoned = None
        if verb is Verb.STATE:
            if refused.code == Code.INVALID_VALUE:
                record.settle(DriverState.NONE, now)  # the driver does not know it: it has not initialised CUDA
                if work.before is DriverState.UNKNOWN:
                    work.before = DriverState.NONE
            else:
                self._again(operation, work, text, now, is_patient=True)
        elif refused.code == Code.OUT_OF_MEMORY and verb is Verb.RESTORE:
            record.settle(DriverState.FAILED, now)  # such a process can stay unusable for ever: never counted as saved
            self.go_back(operation, f"{text}: the process counts as failed")
        elif refused.code == Code.NOT_READY and verb is Verb.LOCK:
            if operation.phase is Phase.FORWARD:
                waited = min(self._settings.lock_timeout_s, operation.deadline - operation.accepted_at)
                self.go_back(
                    operation,
                    f"lock of process {pid} timed out after {waited:g} s: the work that it has launched is not done",
                    is_timeout=True,
                )
            else:
                self._again(operation, work, text, now)
        else:
            # Whatever the reason: where the process is now, the driver knows.
            record.state = DriverState.UNKNOWN
            if refused.code == Code.NOT_SUPPORTED and operation.phase is Phase.FORWARD:
                self.go_back(
                    operation, f"{text}: the process uses what the driver cannot save (CUDA IPC, managed memory)"
                )
            else:
                self._again(operation, work, text, now)

    def _abandoned(
        self, operation: Operation, work: Work, record: ProcessRecord, verb: Verb, reason: str, now: float
    ) -> None:
        record.state = DriverState.UNKNOWN
        record.changed_at = now
        text = f"{verb} of process {record.id.pid}: {reason}"
        if verb is Verb.STATE:
            self._again(operation, work, text, now, is_patient=True)
            return
        operation.abandoned_at = now if operation.abandoned_at is None else operation.abandoned_at
        if verb in (Verb.CHECKPOINT, Verb.RESTORE):
            work.abandoned = verb
        record.suspect_until = now + self._settings.suspect_s
        if operation.phase is Phase.FORWARD and (verb is Verb.LOCK or now >= operation.deadline):
            self.go_back(operation, text, is_timeout=True)
        else:
            self._again(operation, work, text, now)

    def _again(self, operation: Operation, work: Work, text: str, now: float, is_patient: bool = False) -> None:
        """Try again after a delay; forward only as often as the settings say, unless `is_patient`; back without end."""
        if is_patient:
            work.asks += 1
            work.retry_at = now + self._settings.backoff(work.asks)
            return
        work.attempts += 1
        work.retry_at = now + self._settings.backoff(work.attempts)
        if operation.phase is Phase.FORWARD and work.attempts > self._settings.retries:
            self.go_back(operation, f"{text}, {work.attempts} times")


def _ahead_of(operation: Operation, verb: Verb, is_turn_free: bool) -> Ahead:
    """On the way forward. See OPERATIONS.md, "On record"."""
    if verb is Verb.UNLOCK and is_turn_free and begins_turn(operation):
        return Ahead.TURN
    is_asked_to_stop = operation.kind in (Kind.LOCK, Kind.SNAPSHOT) and not operation.is_own
    return Ahead.ORDER if is_asked_to_stop and verb in (Verb.LOCK, Verb.CHECKPOINT) else Ahead.NOTHING


def begins_turn(operation: Operation) -> bool:
    """Whether the operation's unlocking begins a turn."""
    return operation.kind is Kind.UNLOCK or (operation.kind is Kind.RESTORE and not operation.is_left_locked)


def _deadline_text(operation: Operation) -> str:
    return f"{operation.kind} passed its deadline of {operation.deadline - operation.accepted_at:g} s"
