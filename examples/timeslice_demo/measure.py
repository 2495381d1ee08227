"""From what was observed to figures: shares, handoffs, and whether nothing changed. Pure functions over RunLogs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timeslice_demo.ground_truth import NS, Verdict, covered_ns, judge
from timeslice_demo.job_events import EventKind
from timeslice_demo.recorded import Pool
from timeslice_demo.run_log import RunLog

VOID_ABOVE = 1.03
"""The phases may take so much longer in the time-sliced run than alone; beyond it the machine was too busy to
compare.
"""


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Of one pool over one run, from 0 to 1; as the architecture notes define them."""

    held_share: float
    """Share of time with a lease and no switch."""
    active_share: float
    """Share of NVML samples above 0."""
    mean_utilization: float
    """Mean of NVML's utilisation."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """One change of holder: the earlier one's yield has returned (or the later one asked, if later), acquire has
    returned.
    """

    pool: Pool
    job: str
    took_s: float
    driver_s: float
    """What the device's save and restore took of it."""

    @property
    def overhead_s(self) -> float:
        return self.took_s - self.driver_s


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """What the driver took in one pool, in seconds: medians, and how often."""

    save_s: float
    restore_s: float
    saves: int
    restores: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether the time-sliced run left the jobs as they are alone, bit for bit."""

    rewards_equal: Mapping[str, bool]
    weights_equal: Mapping[str, bool]
    memory_changes: int
    """Times that a phase found its device memory changed."""

    @property
    def identical(self) -> bool:
        return all(self.rewards_equal.values()) and all(self.weights_equal.values()) and self.memory_changes == 0


def pool_figures(run: RunLog, pool: Pool, ordinal: int) -> PoolFigures:
    held = [(lease.begin_ns, lease.end_ns) for lease in run.leases() if lease.pool is pool]
    held_ns = sum(covered_ns(begin, end, held) for begin, end in run.segments)
    samples = [
        sample.utilization
        for sample in run.samples
        if sample.device == ordinal
        and any(begin <= sample.monotonic_ns <= end for begin, end in run.segments)
    ]
    if not samples:
        raise ValueError("no NVML sample falls into the run; it is shorter than the sample period")
    return PoolFigures(
        held_share=held_ns / NS / run.wall_s,
        active_share=sum(sample > 0 for sample in samples) / len(samples),
        mean_utilization=statistics.fmean(samples),
    )


def handoffs(run: RunLog, ordinals: Mapping[Pool, int]) -> list[Handoff]:
    """All changes of holder, in order of time."""
    found: list[tuple[int, Handoff]] = []
    for pool in Pool:
        driver = [
            (line.begin_ns, line.end_ns)
            for line in run.journal
            if line.kind in ("checkpoint", "restore") and line.device == ordinals[pool] and line.end_ns is not None
        ]
        last: tuple[str, int] | None = None  # who yielded last, and when that returned
        moments = [
            (event.monotonic_ns, job, event.kind)
            for job, history in run.histories.items()
            for event in history.events
            if event.kind in (EventKind.ASKED, EventKind.GRANTED, EventKind.YIELDED) and event.details["pool"] == pool
        ]
        asked: dict[str, int] = {}
        yielded: list[tuple[int, str]] = sorted((t, job) for t, job, kind in moments if kind is EventKind.YIELDED)
        for moment, job, kind in sorted(moments):
            if kind is EventKind.ASKED:
                asked[job] = moment
            elif kind is EventKind.GRANTED:
                if last is not None and last[0] != job:
                    # A yield may return after the next acquire has: then the handoff took no time at all beyond it.
                    returned = next((t for t, who in yielded if who == last[0] and t >= last[1]), moment)
                    begin = min(max(asked[job], returned), moment)
                    driver_s = covered_ns(begin, moment, driver) / NS
                    found.append((moment, Handoff(pool, job, (moment - begin) / NS, driver_s)))
                last = (job, moment)
    return [handoff for _, handoff in sorted(found, key=lambda item: item[0])]


def swap_times(run: RunLog, ordinal: int) -> SwapTimes:
    def lengths(kind: str) -> list[float]:
        return [
            (line.end_ns - line.begin_ns) / NS
            for line in run.journal
            if line.kind == kind and line.device == ordinal and line.end_ns is not None and line.result == 0
        ]

    saves, restores = lengths("checkpoint"), lengths("restore")
    return SwapTimes(
        statistics.median(saves) if saves else 0.0,
        statistics.median(restores) if restores else 0.0,
        len(saves),
        len(restores),
    )


def compare(solo: RunLog, timesliced: RunLog) -> Comparison:
    jobs = solo.histories
    return Comparison(
        rewards_equal={job: solo.rewards(job) == timesliced.rewards(job) for job in jobs},
        weights_equal={job: solo.weights_sha256(job) == timesliced.weights_sha256(job) for job in jobs},
        memory_changes=len(timesliced.memory_changes()) + len(solo.memory_changes()),
    )


def judge_run(run: RunLog, ordinals: Mapping[Pool, int]) -> Verdict:
    return judge(run.journal, run.leases(), run.owners(), ordinals)


def phase_ratio(solo: RunLog, timesliced: RunLog) -> float:
    """How much longer the same phases took in the time-sliced run; above VOID_ABOVE the comparison is void."""
    return timesliced.phase_sum_s() / solo.phase_sum_s()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed; 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
