"""Figures from observations: every one is checked against a run whose figures can be worked out by hand."""

from dataclasses import replace

import pytest

from hand_made_runs import MS, ORDINALS, PLAN, SETTINGS, group_log, kernel, solo, timesliced
from timeslice_demo.ground_truth import Lease
from timeslice_demo.job_events import EventKind, JobEvent
from timeslice_demo.lease_log import disagreements
from timeslice_demo.measure import handoffs, percentile, phase_ratio, pool_figures, swap_times
from timeslice_demo.outcome import Outcome, make_outcome
from timeslice_demo.recorded import Pool
from timeslice_demo.run_log import RunLog


def outcome(together: RunLog | None = None) -> Outcome:
    return make_outcome(PLAN, SETTINGS, solo(), together or timesliced(), ORDINALS)


def test_wall_time_leaves_out_the_gap_between_two_jobs_alone() -> None:
    assert solo().wall_s == pytest.approx(0.424)
    assert timesliced().wall_s == pytest.approx(0.441)


def test_held_share_counts_leases_without_switches() -> None:
    assert pool_figures(solo(), Pool.SAMPLER, 0).held_share == pytest.approx(220 / 424)
    assert pool_figures(timesliced(), Pool.SAMPLER, 0).held_share == pytest.approx((100 + 100 + 10 + 10) / 441)
    assert pool_figures(timesliced(), Pool.TRAINER, 1).held_share == pytest.approx((169 + 150) / 441)


def test_active_share_and_utilisation_come_from_the_samples_within_the_run() -> None:
    figures = pool_figures(timesliced(), Pool.TRAINER, 1)
    # Busy 102-202, 261-271, 290-390, 430-440: samples at 110-210, 270 and 280, 300-390, 440 are above 0.
    assert figures.active_share == pytest.approx((11 + 2 + 10 + 1) / 44)
    assert figures.mean_utilization == pytest.approx((100 + 10 + 100 + 10) / 440)


def test_handoffs_run_from_yield_or_wish_to_grant_less_the_driver() -> None:
    found = [(handoff.pool, handoff.job, handoff.overhead_s * 1000) for handoff in handoffs(timesliced(), ORDINALS)]
    assert [(pool, job) for pool, job, _ in found] == [
        ("sampler", "job-b"),
        ("sampler", "job-a"),
        ("trainer", "job-b"),
        ("sampler", "job-b"),
    ]
    assert [overhead for *_, overhead in found] == pytest.approx([4, 5, 10, 10])


def test_swap_times_are_the_medians_of_the_journal() -> None:
    times = swap_times(timesliced(), 0)
    assert (times.save_s, times.restore_s, times.saves, times.restores) == pytest.approx((0.02, 0.01, 3, 2))


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(1, 21)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (10, 20, 0)


def test_a_run_with_longer_phases_is_void() -> None:
    assert phase_ratio(solo(), timesliced()) == pytest.approx(1.0)
    assert not outcome().is_void
    slow = timesliced()
    events = slow.histories["job-a"].events
    at = next(i for i, event in enumerate(events) if event.kind is EventKind.PHASE_ENDED)
    events[at] = JobEvent(EventKind.PHASE_ENDED, events[at].monotonic_ns + 20 * MS, 0.0, events[at].details)
    assert outcome(slow).is_void


def test_bound_is_the_simulated_makespan_of_the_solo_phases() -> None:
    # a generates 0-100, saved until 120; b until 220. a trains 100-200; b saved, a brought back until 250; sync until
    # 260. The trainer saves a until 268, b trains until 368; sampler until 398; sync until 408.
    assert outcome().bound.makespan_s == pytest.approx(0.408)
    assert outcome().efficiency == pytest.approx(0.408 / 0.441)


def test_a_clean_run_has_no_failures() -> None:
    good = outcome()
    assert good.comparison.identical
    assert good.failures == []
    assert good.verdict.device_s == pytest.approx(0.44)


def test_other_weights_are_a_failure() -> None:
    bad = outcome(timesliced(weights="other"))
    assert not bad.comparison.identical
    assert [failure for failure in bad.failures if "job-b: the final weights" in failure]


def test_other_rewards_are_a_failure() -> None:
    run = timesliced()
    events = run.histories["job-a"].events
    at = next(i for i, event in enumerate(events) if event.kind is EventKind.REWARD)
    events[at] = JobEvent(EventKind.REWARD, events[at].monotonic_ns, 0.0, {"step": 0, "reward": 0.5 + 2**-40})
    assert not outcome(run).comparison.identical
    assert "job-a: the rewards" in outcome(run).failures[0]


def test_changed_memory_is_a_failure_though_the_results_are_equal() -> None:
    run = timesliced()
    details = {"step": 0, "pool": "trainer", "arrays": ["filler"]}
    run.histories["job-b"].events.append(JobEvent(EventKind.MEMORY_CHANGED, 300 * MS, 0.3, details))
    bad = outcome(run)
    assert all(bad.comparison.weights_equal.values())
    assert not bad.comparison.identical
    assert "job-b, step 1: the trainer's device memory came back changed" in bad.failures[0]


def test_a_grant_beside_another_holder_is_a_failure() -> None:
    log = group_log()
    yielded = next(entry for entry in log if entry.kind == "yielded")
    found = disagreements([entry for entry in log if entry is not yielded], timesliced().leases())
    assert found == ["the sampler pool was granted to job-b while job-a held it"]
    bad = replace(timesliced(), group_log=tuple(entry for entry in log if entry is not yielded))
    assert "the log of leases is wrong" in outcome(bad).failures[0]


def test_a_yield_by_somebody_else_is_a_failure() -> None:
    log = [replace(entry, job="job-b") if entry.kind == "yielded" else entry for entry in group_log()]
    assert "given back by job-b while job-a held it" in disagreements(log, timesliced().leases())[0]


def test_a_lease_that_the_orchestrator_knows_nothing_of_is_a_failure() -> None:
    leases = [*timesliced().leases(), Lease("job-b", Pool.TRAINER, 1000 * MS, 1001 * MS)]
    assert "was granted to job-a, job-b, but used by job-a, job-b, job-b" in disagreements(group_log(), leases)[0]
    assert disagreements(group_log(), timesliced().leases()) == []


def test_device_time_without_a_lease_is_a_failure() -> None:
    bad = outcome(timesliced(extra=[kernel(20, 0, 50, 53)]))
    assert bad.verdict.device_s_without_lease == pytest.approx(0.003)
    assert "without a lease" in bad.failures[0]
