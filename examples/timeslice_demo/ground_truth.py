"""The mock's own journal held against the leases: was a device ever touched by a job that did not hold it?

Both sides read CLOCK_MONOTONIC of one machine (the nodes of a kind cluster, too, are containers of one), so there is
nothing to align and the tolerance is zero. A lease counts
from the moment at which the job's `acquire` had returned to the moment before it called `release`: as the job sees
it, which lies within what the orchestrator recorded.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool

NS = 1_000_000_000
WORK = ("kernel", "copy", "memset")
"""Kinds of journal lines that are use of a device over a time."""
LOCK = "lock"
TOUCHES = ("alloc", "free", "illegal")
"""Kinds that are use of a device at a moment. (Locks, saves and restores are the agent's doing.)"""


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One thing that the mock did, for whom, when; end_ns is None where the process was killed amid it."""

    kind: str
    name: str
    process: ProcessId
    device: int | None
    begin_ns: int
    end_ns: int | None
    size_bytes: int
    result: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A job's right to a pool, on the clock of the journal."""

    job: str
    pool: Pool
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the journal says of the leases."""

    device_s_without_lease: float
    touches_without_lease: int
    locks_during_lease: int
    """How often a job was stopped by a lock while it held the lease: nobody has any business to."""
    device_s: float
    """All device time that the journal shows, so that one sees that there was something to judge."""
    examples: tuple[str, ...]
    """The first few offences, in words."""


def read_journal(text: str) -> list[JournalLine]:
    lines = []
    for line in text.splitlines():
        fields = json.loads(line)
        lines.append(
            JournalLine(
                fields["kind"],
                fields["name"],
                ProcessId(fields["pid_namespace"], fields["inner_pid"], fields["start_time"]),
                fields["device"],
                fields["begin_ns"],
                fields["end_ns"],
                fields["bytes"],
                fields["result"],
            )
        )
    return lines


def judge(
    journal: Sequence[JournalLine],
    leases: Iterable[Lease],
    owners: Mapping[ProcessId, tuple[str, Pool]],
    ordinals: Mapping[Pool, int],
) -> Verdict:
    """Hold every line that used a device against the leases.

    Args:
        owners: the job and pool of each process. Work of any other process is work without a lease.
        ordinals: which device is each pool's. Work on another device is work without a lease.
    """
    held: dict[tuple[str, Pool], list[Lease]] = {}
    for lease in leases:
        held.setdefault((lease.job, lease.pool), []).append(lease)
    last_ns = max((line.end_ns or line.begin_ns for line in journal), default=0)
    without_ns = total_ns = touches = locks = 0
    examples: list[str] = []
    for line in journal:
        owner = owners.get(line.process)
        if line.kind == LOCK and owner is not None:
            locks += any(lease.begin_ns <= line.begin_ns < lease.end_ns for lease in held.get(owner, []))
        if line.kind not in WORK + TOUCHES:
            continue
        end_ns = line.end_ns if line.end_ns is not None else last_ns
        own = held.get(owner, []) if owner is not None and ordinals[owner[1]] == line.device else []
        outside_ns = (end_ns - line.begin_ns) - covered_ns(line.begin_ns, end_ns, [(x.begin_ns, x.end_ns) for x in own])
        if line.kind in WORK:
            total_ns += end_ns - line.begin_ns
            without_ns += outside_ns
            offends = outside_ns > 0
        else:
            offends = not any(lease.begin_ns <= line.begin_ns <= lease.end_ns for lease in own)
            touches += offends
        if offends:
            who = f"{owner[0]}'s {owner[1]}" if owner else "an unknown process"
            examples.append(
                f"{line.kind} {line.name} of {who} (pid {line.process.pid}) on device {line.device} at {line.begin_ns}"
            )
    return Verdict(without_ns / NS, touches, locks, total_ns / NS, tuple(examples[:5]))


def covered_ns(begin_ns: int, end_ns: int, intervals: Iterable[tuple[int, int]]) -> int:
    """How much of [begin, end] lies in the intervals, which do not overlap."""
    return sum(max(0, min(end_ns, last) - max(begin_ns, first)) for first, last in intervals)
