"""The bound: cases that can be worked out by hand, what must hold for all, and a second simulation that must agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import independent_simulation
from timeslice_demo.bound import simulate
from timeslice_demo.phases import Acquire, Yield, actions
from timeslice_demo.recorded import Plan, Pool, Step, Swap, make_plan

FREE = {pool: Swap(0.0, 0.0) for pool in Pool}


def test_one_job_alone_takes_the_sum_of_its_phases_and_never_swaps() -> None:
    schedule = simulate({"a": (Step(3, 2, 1), Step(4, 5, 1))}, {pool: Swap(10, 10) for pool in Pool})
    assert schedule.makespan_s == 16
    assert set(schedule.swaps.values()) == {0}


def test_two_jobs_of_one_step_without_swaps() -> None:
    # a: generates 0-3, trains 3-5, b holds the sampler 3-6, a syncs 6-7; b trains 7-9, syncs 9-10.
    assert simulate({"a": (Step(3, 2, 1),), "b": (Step(3, 2, 1),)}, FREE).makespan_s == 10


def test_swaps_are_strict_and_the_first_visit_brings_nothing_back() -> None:
    swaps = {Pool.SAMPLER: Swap(0.5, 0.25), Pool.TRAINER: Swap(0.125, 0.0625)}
    # a generates 0-3; its memory is saved until 3.5; b generates until 6.5. a has trained 3-5 and waits; b is saved, a
    # is brought back until 7.25, syncs until 8.25. The trainer saves a until 8.375, b trains until 10.375; the sampler
    # saves a and brings b back until 11.125; b syncs until 12.125.
    schedule = simulate({"a": (Step(3, 2, 1),), "b": (Step(3, 2, 1),)}, swaps)
    assert schedule.makespan_s == 12.125
    assert schedule.swaps == {Pool.SAMPLER: 3, Pool.TRAINER: 1}


@pytest.mark.parametrize(("jobs", "steps", "ratio"), [(2, 3, 0.640), (2, 5, 0.603), (2, 9, 0.584), (3, 5, 0.620)])
def test_recorded_phases_take_about_six_tenths_of_one_after_the_other(jobs: int, steps: int, ratio: float) -> None:
    plan = make_plan(jobs, steps, 1.0)
    assert simulate(plan.jobs, plan.swaps).makespan_s / plan.solo_s == pytest.approx(ratio, abs=0.001)


STEPS = st.lists(st.builds(Step, st.floats(0.1, 9), st.floats(0.1, 9), st.floats(0.1, 2)), min_size=1, max_size=4).map(
    tuple
)


@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, min_size=1, max_size=4), st.floats(0, 2), st.floats(0, 2))
def test_no_schedule_beats_the_busiest_pool_or_is_worse_than_one_after_the_other(
    jobs: list[tuple[Step, ...]], save_s: float, restore_s: float
) -> None:
    named = {str(number): steps for number, steps in enumerate(jobs)}
    swaps = {pool: Swap(save_s, restore_s) for pool in Pool}
    schedule = simulate(named, swaps)
    plan = Plan(named, swaps)
    assert schedule.makespan_s >= max(plan.load_s(pool) for pool in Pool) - 1e-6
    worst_s = plan.solo_s + sum(schedule.swaps.values()) * (save_s + restore_s)
    assert schedule.makespan_s <= worst_s + 1e-6
    independent = independent_simulation.simulate(named, swaps)
    assert schedule.makespan_s == pytest.approx(independent.makespan_s, abs=1e-6)
    assert schedule.swaps == independent.swaps


def test_a_job_never_waits_for_the_trainer_pool_while_it_holds_the_sampler_pool() -> None:
    """The order that makes a deadlock impossible, and each pool given back as often as taken."""
    held: set[Pool] = set()
    for action in actions((Step(1, 1, 1), Step(1, 1, 1))):
        match action:
            case Acquire(pool):
                assert pool not in held
                assert not (pool is Pool.TRAINER and Pool.SAMPLER in held)
                held.add(pool)
            case Yield(pool):
                held.remove(pool)
            case _:
                assert held
    assert held == set()
