"""Whose turn it is in a group, as far as this agent was told."""

from __future__ import annotations

from dataclasses import dataclass

from snapshot_agent_server.core.ids import JobId


@dataclass(frozen=True, slots=True)
class Turn:
    job: JobId | None = None
    """The job that was unlocked last, until it is locked, saved or gone. None: nobody was unlocked since; the holder,
    if there is one, has no context here yet, so that nobody can be taken for an intruder but the barred."""
    barred: frozenset[JobId] = frozenset()
    """Jobs that were locked or saved since somebody was unlocked."""

    def unlocked(self, job: JobId) -> Turn:
        return Turn(job)

    def ended(self, job: JobId) -> Turn:
        return Turn(None if self.job == job else self.job, self.barred | {job})

    def gone(self, job: JobId) -> Turn:
        return Turn(None if self.job == job else self.job, self.barred - {job})

    def may_run(self, job: JobId) -> bool:
        return job == self.job or (self.job is None and job not in self.barred)
