"""Everything the demo has to say about a pair of runs, computed once, for the table, the summary and the page."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timeslice_demo.bound import Schedule, simulate
from timeslice_demo.ground_truth import Verdict
from timeslice_demo.lease_log import GRANTED, disagreements
from timeslice_demo.measure import (
    VOID_ABOVE,
    Comparison,
    Handoff,
    PoolFigures,
    SwapTimes,
    compare,
    handoffs,
    judge_run,
    percentile,
    phase_ratio,
    pool_figures,
    swap_times,
)
from timeslice_demo.phases import Phase
from timeslice_demo.recorded import Plan, Pool, Step
from timeslice_demo.run_log import RunLog

SWAP_TOLERANCE = 1.10
"""The driver's median swap may be so much longer than planned; beyond it the devices are too large for the scale."""


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    settings: Mapping[str, Any]
    """What the run was told, for the record: jobs, steps, seed, scale, sample period."""
    solo: RunLog
    timesliced: RunLog
    solo_pools: Mapping[Pool, PoolFigures]
    timesliced_pools: Mapping[Pool, PoolFigures]
    handoffs: tuple[Handoff, ...]
    swaps: Mapping[Pool, SwapTimes]
    comparison: Comparison
    verdict: Verdict
    disagreements: tuple[str, ...]
    """Where the orchestrator's log of leases is not what the jobs say, or has two holders at once."""
    bound: Schedule
    busiest_load_s: Mapping[Pool, float]
    """What each pool had to do in the solo run: no schedule of these phases is shorter than the larger of them."""
    phase_ratio: float
    place: str
    """Where the jobs ran, in sentences; empty: as processes of one machine, as the demo has them."""

    @property
    def makespan_ratio(self) -> float:
        return self.timesliced.wall_s / self.solo.wall_s

    @property
    def efficiency(self) -> float:
        return self.bound.makespan_s / self.timesliced.wall_s

    @property
    def is_void(self) -> bool:
        return self.phase_ratio > VOID_ABOVE

    @property
    def overhead_ms(self) -> list[float]:
        return [handoff.overhead_s * 1000 for handoff in self.handoffs]

    @property
    def slow_swaps(self) -> list[Pool]:
        """Pools whose devices could not keep to the planned swap times."""
        return [
            pool
            for pool, times in self.swaps.items()
            if times.save_s > self.plan.swaps[pool].save_s * SWAP_TOLERANCE
            or times.restore_s > self.plan.swaps[pool].restore_s * SWAP_TOLERANCE
        ]

    @property
    def failures(self) -> list[str]:
        """Why this run must not count as a success, in sentences; empty if all is well."""
        found = []
        for job in self.solo.histories:
            if not self.comparison.rewards_equal[job]:
                found.append(f"{job}: the rewards of the time-sliced run differ from those of the job alone.")
            if not self.comparison.weights_equal[job]:
                found.append(f"{job}: the final weights of the time-sliced run differ from those of the job alone.")
        for job, step, pool, arrays in self.timesliced.memory_changes():
            found.append(
                f"{job}, step {step + 1}: the {pool}'s device memory came back changed after it had been saved"
                f" ({', '.join(arrays)})."
            )
        if self.verdict.device_s_without_lease or self.verdict.touches_without_lease:
            found.append(
                f"{self.verdict.device_s_without_lease:.6f} s of device time and {self.verdict.touches_without_lease}"
                f" other uses without a lease, for example: {'; '.join(self.verdict.examples)}."
            )
        found += [f"the log of leases is wrong: {text}." for text in self.disagreements]
        return found


def make_outcome(
    plan: Plan,
    settings: Mapping[str, Any],
    solo: RunLog,
    timesliced: RunLog,
    ordinals: Mapping[Pool, int],
    place: str = "",
) -> Outcome:
    steps = _measured_steps(solo)
    measured = {job: steps[job] for job in sorted(steps, key=lambda job: timesliced.histories[job].span())}
    return Outcome(
        plan=plan,
        settings=settings,
        solo=solo,
        timesliced=timesliced,
        solo_pools={pool: pool_figures(solo, pool, ordinals[pool]) for pool in Pool},
        timesliced_pools={pool: pool_figures(timesliced, pool, ordinals[pool]) for pool in Pool},
        handoffs=tuple(handoffs(timesliced, ordinals)),
        swaps={pool: swap_times(timesliced, ordinals[pool]) for pool in Pool},
        comparison=compare(solo, timesliced),
        verdict=judge_run(timesliced, ordinals),
        disagreements=tuple(disagreements(timesliced.group_log, timesliced.leases())),
        bound=simulate(measured, plan.swaps),
        busiest_load_s={pool: Plan(measured, plan.swaps).load_s(pool) for pool in Pool},
        phase_ratio=phase_ratio(solo, timesliced),
        place=place,
    )


def summary(outcome: Outcome) -> dict[str, Any]:
    """What summary.json holds."""
    overhead = outcome.overhead_ms
    return {
        "settings": dict(outcome.settings),
        "solo": _run_summary(outcome.solo, outcome.solo_pools),
        "timesliced": {
            **_run_summary(outcome.timesliced, outcome.timesliced_pools),
            "handoffs": len(outcome.handoffs),
            "handoff_overhead_ms": {"p50": percentile(overhead, 0.5), "p99": percentile(overhead, 0.99)},
            "swap_s": {
                pool: {
                    "save": times.save_s,
                    "restore": times.restore_s,
                    "saves": times.saves,
                    "restores": times.restores,
                }
                for pool, times in outcome.swaps.items()
            },
            "device_s_without_lease": outcome.verdict.device_s_without_lease,
            "touches_without_lease": outcome.verdict.touches_without_lease,
            "device_s": outcome.verdict.device_s,
            "locks_during_lease": outcome.verdict.locks_during_lease,
            "leases_granted": sum(entry.kind == GRANTED for entry in outcome.timesliced.group_log),
        },
        "makespan_over_solo": outcome.makespan_ratio,
        "active_share_mean": {
            "solo": mean_active_share(outcome.solo_pools),
            "timesliced": mean_active_share(outcome.timesliced_pools),
        },
        "bound_s": outcome.bound.makespan_s,
        "bound_is": "the same policy, the solo run's phases, the planned swaps, no overhead; simulated over the core",
        "efficiency_vs_bound": outcome.efficiency,
        "busiest_pool_load_s": max(outcome.busiest_load_s.values()),
        "phase_time_ratio": outcome.phase_ratio,
        "void": outcome.is_void,
        "identical": outcome.comparison.identical,
        "memory_changes": outcome.comparison.memory_changes,
        "weights_sha256": {
            job: {"solo": outcome.solo.weights_sha256(job), "timesliced": outcome.timesliced.weights_sha256(job)}
            for job in outcome.solo.histories
        },
        "rewards": {
            job: {"solo": outcome.solo.rewards(job), "timesliced": outcome.timesliced.rewards(job)}
            for job in outcome.solo.histories
        },
        "held_out_accuracy": {job: outcome.timesliced.accuracy(job) for job in outcome.solo.histories},
    }


def mean_active_share(pools: Mapping[Pool, PoolFigures]) -> float:
    return statistics.fmean(figures.active_share for figures in pools.values())


def _run_summary(run: RunLog, pools: Mapping[Pool, PoolFigures]) -> dict[str, Any]:
    return {
        "wall_s": run.wall_s,
        "held_share": {pool: figures.held_share for pool, figures in pools.items()},
        "active_share": {pool: figures.active_share for pool, figures in pools.items()},
        "mean_utilization": {pool: figures.mean_utilization for pool, figures in pools.items()},
        "phase_sum_s": run.phase_sum_s(),
    }


def _measured_steps(run: RunLog) -> dict[str, tuple[Step, ...]]:
    """How long each phase took in a run, as steps that a simulation can play."""
    took: dict[str, dict[int, dict[Phase, float]]] = {}
    for span in run.phases():
        took.setdefault(span.job, {}).setdefault(span.step, {})[span.phase] = (span.end_ns - span.begin_ns) / 1e9
    return {
        job: tuple(
            Step(phases[Phase.GENERATE], phases[Phase.TRAIN], phases[Phase.SYNC]) for _, phases in sorted(steps.items())
        )
        for job, steps in took.items()
    }
