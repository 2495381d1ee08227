"""The figures of the recorded run, and plans made from them."""

import statistics

import pytest

from timeslice_demo.recorded import Pool, make_plan, recorded_run


def test_figures_are_those_of_the_recording() -> None:
    run = recorded_run()
    assert {name: (swap["save_s"], swap["restore_s"]) for name, swap in run["swaps"].items()} == {
        "trainer": (6.8, 2.5),
        "sampler": (22.0, 7.3),
    }
    assert run["sync_s"] == 10.0
    for job in run["jobs"].values():
        assert len(job["generate_s"]) == len(job["train_s"]) == 9
        assert 430 < statistics.median(job["train_s"]) < 440
        assert 420 < statistics.median(job["generate_s"]) < 440
    assert "6cf8e9b" in run["source"]


def test_plan_is_the_recording_scaled() -> None:
    plan = make_plan(2, 3, 1 / 100)
    assert list(plan.jobs) == ["job-a", "job-b"]
    first = plan.jobs["job-a"][0]
    assert (first.generate_s, first.train_s, first.sync_s) == pytest.approx((3.75, 4.257, 0.1))
    assert plan.swaps[Pool.SAMPLER].save_s == pytest.approx(0.22)
    assert plan.solo_s == pytest.approx(make_plan(2, 3, 1.0).solo_s / 100)
    # The phases complement each other: neither pool has much more to do than the other.
    assert plan.load_s(Pool.SAMPLER) / plan.load_s(Pool.TRAINER) == pytest.approx(1, abs=0.06)
    assert plan.load_s(Pool.SAMPLER) + plan.load_s(Pool.TRAINER) == pytest.approx(plan.solo_s + 6 * 0.1)


def test_further_jobs_are_not_copies_of_the_first_two() -> None:
    plan = make_plan(4, 9, 1.0)
    assert len(set(plan.jobs.values())) == 4
    assert plan.jobs["job-c"][:8] == plan.jobs["job-a"][1:]


def test_more_steps_than_recorded_begin_again() -> None:
    plan = make_plan(2, 11, 1.0)
    assert plan.jobs["job-a"][9] == plan.jobs["job-a"][0]
