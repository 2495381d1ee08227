"""Who of each group may run: the context that was unlocked last. What runs besides it is an intruder.

Kept for groups that have seen a fencing token; without tokens nobody can tell whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from snapshot_agent_server.core.contexts import Context
from snapshot_agent_server.core.effects import Effect, RecordAdmission
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId
from snapshot_agent_server.core.operations import Kind, Operation
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.settings import CoreSettings


@dataclass(slots=True)
class _Attempt:
    count: int
    retry_at: float


@dataclass(slots=True)
class Admission:
    admitted: dict[GroupId, JobId | None] = field(default_factory=dict)
    _attempts: dict[ContextKey, _Attempt] = field(default_factory=dict)

    def started(self, operation: Operation) -> list[Effect]:
        """Unlock and an unlocking Restore admit, Lock and Snapshot end it: from their start, so that it is on record
        before the driver is called, and a restart knows which way to mend what was half done."""
        if operation.is_own:
            return []
        effects: list[Effect] = []
        for key in operation.keys:
            if operation.token == 0 and key.group not in self.admitted:
                continue
            now = self.admitted.get(key.group)
            operation.admitted_before[key.group] = now
            if operation.kind is Kind.UNLOCK or (operation.kind is Kind.RESTORE and not operation.is_left_locked):
                new: JobId | None = key.job
            else:
                new = None if now == key.job else now
            effects += self._set(key.group, new)
        return effects

    def failed(self, operation: Operation) -> list[Effect]:
        """The operation went back: so does what its start changed."""
        effects: list[Effect] = []
        for group, before in operation.admitted_before.items():
            effects += self._set(GroupId(group), JobId(before) if before is not None else None)
        return effects

    def repairs(
        self, registry: Registry, busy: Set[ContextKey], settings: CoreSettings, now: float
    ) -> Iterator[tuple[Kind, ContextKey]]:
        """Contexts that run though they must not, or are locked though it is their turn, and what mends it."""
        for key, context in registry.contexts.items():
            kind = self._repair(context, now)
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
        states, key = context.states(), context.key
        if key.group not in self.admitted:
            is_late = any(process.is_locked_late(now) for process in context.processes.values())
            return Kind.UNLOCK if is_late else None
        if key.job == self.admitted[key.group]:
            return Kind.UNLOCK if DriverState.LOCKED in states else None
        return Kind.LOCK if DriverState.RUNNING in states else None

    def wake_at(self, now: float) -> float | None:
        return min((a.retry_at for a in self._attempts.values() if a.retry_at > now), default=None)

    def forget(self, key: ContextKey) -> None:
        self._attempts.pop(key, None)

    def _set(self, group: GroupId, job: JobId | None) -> list[Effect]:
        if group in self.admitted and self.admitted[group] == job:
            return []
        self.admitted[group] = job
        return [RecordAdmission(group, job)]
