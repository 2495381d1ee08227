"""What the jobs of the soak wrote down, as leases that can be held against a mock's journal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from timeslice_demo.ground_truth import TOUCHES, WORK, JournalLine, Lease
from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool


@dataclass
class Hold:
    """A lease as a process noted it, in nanoseconds. None: it did not come to that."""

    acquired: int
    releasing: int | None = None
    released: int | None = None


@dataclass
class Life:
    """What one process of a job wrote down."""

    job: str
    group: str
    process: ProcessId
    held: list[Hold] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)


def lives(text: str) -> list[Life]:
    """From all files, one after the other."""
    found: list[Life] = []
    for line in text.splitlines():
        note = json.loads(line)
        match note["what"]:
            case "began":
                found.append(Life(note["job"], note["group"], ProcessId(*note["process"])))
            case "acquired":
                found[-1].held.append(Hold(note["at_ns"]))
            case "releasing":
                found[-1].held[-1].releasing = note["at_ns"]
            case "released":
                found[-1].held[-1].released = note["at_ns"]
            case _:
                found[-1].notes.append(note)
    return found


@dataclass(frozen=True)
class Told:
    """One lease, by how much is known of its end."""

    certain: Lease
    """Until its process gave it back, or was last seen at work before it was killed."""
    held: Lease
    """Until its process gave it back, or, where it was killed, until another job held."""
    possible: Lease
    """Until the orchestrator has answered that it is given back: until then another process may come to share it."""


def leases(group: list[Life], journal: list[JournalLine]) -> list[Told]:
    begins = sorted((hold.acquired, life.job) for life in group for hold in life.held)
    at_work: dict[ProcessId, int] = {}
    for line in journal:
        if line.kind in WORK + TOUCHES:
            at_work[line.process] = max(at_work.get(line.process, 0), line.end_ns or line.begin_ns)
    made = []
    for life in group:
        for hold in life.held:
            others = (other for other, job in begins if other > hold.acquired and job != life.job)
            last = next(others, hold.acquired + (1 << 62))
            seen = max(hold.acquired, at_work.get(life.process, 0))
            lease = Lease(life.job, pool(life.group), hold.acquired, last)
            made.append(
                Told(
                    certain=replace(lease, end_ns=hold.releasing or seen),
                    held=replace(lease, end_ns=hold.releasing or last),
                    possible=replace(lease, end_ns=hold.released or last),
                )
            )
    return sorted(made, key=lambda told: told.held.begin_ns)


def united(held: list[Lease]) -> list[Lease]:
    """With one lease in place of those of a job that overlap."""
    made: list[Lease] = []
    for lease in sorted(held, key=lambda lease: (lease.job, lease.begin_ns)):
        if made and made[-1].job == lease.job and lease.begin_ns <= made[-1].end_ns:
            made[-1] = replace(made[-1], end_ns=max(made[-1].end_ns, lease.end_ns))
        else:
            made.append(lease)
    return made


def unshared(told: list[Told]) -> list[Told]:
    """Without those that two pods of a job had together while one replaced the other (row 41).

    The one that does not own the lease learns of its end a little later than the next job is granted. Its process is
    locked by then: device time without a lease would tell if it was not.
    """
    by_job: dict[str, list[Told]] = {}
    for one in told:
        by_job.setdefault(one.held.job, []).append(one)

    def is_shared(one: Told) -> bool:
        own = one.possible
        return any(
            other is not one and other.possible.begin_ns < own.end_ns and own.begin_ns < other.possible.end_ns
            for other in by_job[own.job]
        )

    return [one for one in told if not is_shared(one)]


def pool(group: str) -> Pool:
    return Pool(group.removesuffix("s"))


def finished(journal: list[JournalLine], group: list[Life]) -> list[JournalLine]:
    """Work that a kill cut off ended with its process, at the latest when somebody noticed that."""
    ended = {
        (note["pid"], life.process.pid_namespace): note["at_ns"]
        for life in group
        for note in life.notes
        if note["what"] == "ended"
    }
    return [
        replace(line, end_ns=ended.get((line.process.pid, line.process.pid_namespace), line.begin_ns))
        if line.end_ns is None
        else line
        for line in journal
    ]
