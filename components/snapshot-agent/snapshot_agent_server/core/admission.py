"""Keeps each group to one context that runs: what runs though it is not its turn is an intruder, and is locked.

For groups that have seen a fencing token; without tokens nobody can tell whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from snapshot_agent_server.core.contexts import Context
from snapshot_agent_server.core.effects import Effect, RecordTurn
from snapshot_agent_server.core.ids import ContextKey, GroupId
from snapshot_agent_server.core.modes import Backend
from snapshot_agent_server.core.operations import Kind, Operation
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.core.turn import Turn


@dataclass(slots=True)
class _Attempt:
    count: int
    retry_at: float


@dataclass(slots=True)
class Admission:
    turns: dict[GroupId, Turn] = field(default_factory=dict)
    _attempts: dict[ContextKey, _Attempt] = field(default_factory=dict)

    def started(self, operation: Operation) -> list[Effect]:
        """Unlock begins a turn, Lock and Snapshot end it: from their start, so that it is on record before the driver
        is called, and a restart knows which way to mend what was half done. A Restore of the driver's begins one when
        it unlocks (`unlocking`), one of a workload's own at once."""
        effects: list[Effect] = []
        for group, turn in self._turns_at(operation).items():
            operation.turns_before[group] = self.turns.get(group, Turn())
            effects += self._set(group, turn)
        return effects

    def unlocking(self, operation: Operation) -> list[Effect]:
        """A Restore unlocks, or has found nothing to unlock: once, for each of its groups, a turn begins."""
        effects: list[Effect] = []
        for group, key in self._concerned(operation):
            if group not in operation.turns_before:
                before = operation.turns_before[group] = self.turns.get(group, Turn())
                effects += self._set(group, before.unlocked(key.job))
        return effects

    def held_back(self, operation: Operation) -> list[Effect]:
        """A Restore leaves locked what it was to unlock: a turn that it has begun is over."""
        effects: list[Effect] = []
        for group, key in self._concerned(operation):
            if group in operation.turns_before:
                effects += self._set(group, self.turns.get(group, Turn()).ended(key.job))
        return effects

    def is_free(self, operation: Operation) -> bool:
        """It is nobody's turn in its groups, or was before it began one, or the job's own."""
        turns = (
            (operation.turns_before.get(key.group, self.turns.get(key.group, Turn())), key) for key in operation.keys
        )
        return all(turn.job in (None, key.job) for turn, key in turns)

    def changes_at(self, operation: Operation) -> bool:
        """Whether its start puts a turn on record."""
        return any(self.turns.get(group) != turn for group, turn in self._turns_at(operation).items())

    def _turns_at(self, operation: Operation) -> dict[GroupId, Turn]:
        """Whose turn it is in each of its groups once it has started."""
        found: dict[GroupId, Turn] = {}
        for group, key in self._concerned(operation):
            turn = self.turns.get(group, Turn())
            match operation.kind:
                case Kind.LOCK | Kind.SNAPSHOT:
                    found[group] = turn.ended(key.job)
                case Kind.RESTORE if operation.backend is Backend.CUDA:
                    pass
                case Kind.RESTORE | Kind.UNLOCK:
                    found[group] = turn.unlocked(key.job)
        return found

    def _concerned(self, operation: Operation) -> Iterator[tuple[GroupId, ContextKey]]:
        """Its groups whose turns it changes, if any."""
        for key in operation.keys if not operation.is_own else ():
            if operation.token != 0 or key.group in self.turns:
                yield key.group, key

    def failed(self, operation: Operation) -> list[Effect]:
        """The operation went back: so does what its start changed."""
        effects: list[Effect] = []
        for group, before in operation.turns_before.items():
            effects += self._set(group, before)
        return effects

    def gone(self, key: ContextKey) -> list[Effect]:
        """A context's processes have ended: it runs no more, and if the job comes back, it is a new one."""
        self._attempts.pop(key, None)
        turn = self.turns.get(key.group)
        return self._set(key.group, turn.gone(key.job)) if turn is not None else []

    def repairs(
        self, registry: Registry, busy: Set[ContextKey], settings: CoreSettings, now: float
    ) -> Iterator[tuple[Kind, ContextKey]]:
        """Contexts that run though they must not, or are locked though it is their turn, and what mends it."""
        for key, context in registry.contexts.items():
            kind = self._repair(context, now)
            if kind is Kind.LOCK and registry.is_open(key) and DriverState.CHECKPOINTED in context.states():
                kind = Kind.SNAPSHOT  # a process that came late: without it the context is neither saved nor running
            if kind is None:
                self._attempts.pop(key, None)
                continue
            attempt = self._attempts.get(key)
            if key in busy or (attempt is not None and attempt.retry_at > now):
                continue
            count = attempt.count + 1 if attempt is not None else 1
            self._attempts[key] = _Attempt(count, now + settings.backoff(count + 3))
            yield kind, key

    def _repair(self, context: Context, now: float) -> Kind | None:
        states, job = context.states(), context.key.job
        can_lock = context.workload is None  # its callbacks would hang, and they are what takes it off the device
        turn = self.turns.get(context.key.group, Turn())
        if job == turn.job:
            return Kind.UNLOCK if DriverState.LOCKED in states else None
        if not turn.may_run(job):
            return Kind.LOCK if DriverState.RUNNING in states and can_lock else None
        is_late = any(process.is_locked_late(now) for process in context.processes.values())
        return Kind.UNLOCK if is_late else None

    def wake_at(self, now: float) -> float | None:
        return min((a.retry_at for a in self._attempts.values() if a.retry_at > now), default=None)

    def mended(self, key: ContextKey) -> None:
        """A repair succeeded: the next one of that context is a new matter."""
        self._attempts.pop(key, None)

    def _set(self, group: GroupId, turn: Turn) -> list[Effect]:
        if self.turns.get(group) == turn:
            return []
        self.turns[group] = turn
        return [RecordTurn(group, turn)]
