"""Who waits for whom, over all groups: a request that would close a cycle of waits is found before it queues.

A job that waits for a group waits for its holder (or the job being switched in) and for every job ahead in its queue.
Only jobs that wait in one group and hold or wait in another can be part of a cycle, so only these are followed: a
request of a job that has nothing else costs O(1).
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.types import GroupId, JobId


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One step of a cycle: `job` waits for `group`, which `other` holds or will get first."""

    job: JobId
    group: GroupId
    other: JobId
    is_held: bool


class WaitGraph:
    """The leases, switches and queues of all groups, by job."""

    def __init__(self) -> None:
        self._holder: dict[GroupId, JobId] = {}
        self._held: dict[JobId, set[GroupId]] = {}
        self._waits: dict[JobId, dict[GroupId, list[int]]] = {}
        self._tangled: dict[GroupId, set[JobId]] = {}
        """Per group the jobs that wait in it and in a further group."""

    def hold(self, group: GroupId, job: JobId | None) -> None:
        """Say who holds a group, or is being switched in; None: nobody."""
        before = self._holder.pop(group, None)
        if before is not None:
            self._held[before].discard(group)
            if not self._held[before]:
                del self._held[before]
        if job is not None:
            self._holder[group] = job
            self._held.setdefault(job, set()).add(group)

    def wait(self, group: GroupId, job: JobId, sequence: int) -> None:
        """Say that a request of a job waits in a group; a job may wait there several times."""
        self._waits.setdefault(job, {}).setdefault(group, []).append(sequence)
        self._retangle(job)

    def leave(self, group: GroupId, job: JobId, sequence: int) -> None:
        """Say that a request waits no more."""
        waits = self._waits[job]
        waits[group].remove(sequence)
        if not waits[group]:
            del waits[group]
            self._untangle(group, job)
        if not waits:
            del self._waits[job]
        else:
            self._retangle(job)

    def cycle(self, group: GroupId, job: JobId) -> tuple[WaitsFor, ...]:
        """Return the cycle that a new request of `job` for `group` would close; empty: none.

        A request behind one of the same job in the same group adds nothing, so it closes none.
        """
        if job not in self._held and job not in self._waits:
            return ()
        came_from: dict[JobId, WaitsFor] = {}
        ahead = [WaitsFor(job, group, other, held) for other, held in self._before(group, job, None, job)]
        while ahead:
            step = ahead.pop()
            if step.other in came_from:
                continue
            came_from[step.other] = step
            if step.other == job:
                return self._path(came_from, job)
            for waited, sequences in self._waits.get(step.other, {}).items():
                if self._holder.get(waited) == step.other:
                    continue
                ahead.extend(
                    WaitsFor(step.other, waited, other, held)
                    for other, held in self._before(waited, step.other, min(sequences), job)
                    if other != step.other
                )
        return ()

    def depends_on_waiter(self, group: GroupId, job: JobId) -> bool:
        """Tell whether `job`, if it held `group` now, would itself wait for somebody who waits for `group`."""
        seen = {job}
        todo = [job]
        while todo:
            current = todo.pop()
            for waited, sequences in self._waits.get(current, {}).items():
                if waited == group:
                    continue
                for other, _ in self._before(waited, current, min(sequences), job):
                    if group in self._waits.get(other, {}) and other != job:
                        return True
                    if other not in seen:
                        seen.add(other)
                        todo.append(other)
        return False

    def _before(
        self, group: GroupId, job: JobId, sequence: int | None, asking: JobId
    ) -> list[tuple[JobId, bool]]:
        """Return the jobs that come before a place (None: the end) in a group's queue and matter: the holder, the jobs
        ahead that also wait in another group, and `asking` if it is ahead."""
        before: list[tuple[JobId, bool]] = []
        holder = self._holder.get(group)
        if holder is not None and holder != job:
            before.append((holder, True))
        for other in self._tangled.get(group, ()):
            if other not in (job, holder) and (sequence is None or min(self._waits[other][group]) < sequence):
                before.append((other, False))
        if job != asking and sequence is not None and asking not in self._tangled.get(group, ()):
            asked = self._waits.get(asking, {}).get(group)
            if asked and asking != holder and min(asked) < sequence:
                before.append((asking, False))
        return before

    @staticmethod
    def _path(came_from: dict[JobId, WaitsFor], job: JobId) -> tuple[WaitsFor, ...]:
        path = [came_from[job]]
        while path[-1].job != job:
            path.append(came_from[path[-1].job])
        return tuple(reversed(path))

    def _retangle(self, job: JobId) -> None:
        waits = self._waits[job]
        for group in waits:
            if len(waits) > 1:
                self._tangled.setdefault(group, set()).add(job)
            else:
                self._untangle(group, job)

    def _untangle(self, group: GroupId, job: JobId) -> None:
        tangled = self._tangled.get(group)
        if tangled is not None:
            tangled.discard(job)
            if not tangled:
                del self._tangled[group]
