"""The simulator: the production core on virtual time."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.simulate import Acquire, Program, SimulationStuck, SwapTimes, Work, Yield, simulate


def phases(job: str, steps: int, generate_s: float, train_s: float) -> Program:
    actions: list[Acquire | Work | Yield] = []
    for _ in range(steps):
        actions += [Acquire("sampler"), Work(generate_s), Yield("sampler")]
        actions += [Acquire("trainer"), Work(train_s), Yield("trainer")]
    return Program(job, actions)


def test_one_job_alone_takes_the_sum_of_its_phases() -> None:
    swaps = {"sampler": SwapTimes(2.0, 1.0), "trainer": SwapTimes(2.0, 1.0)}
    result = simulate([phases("a", 3, 10.0, 20.0)], swaps)
    assert result.makespan_s == pytest.approx(90.0)
    assert result.handoffs == 0


def test_two_jobs_fill_each_others_gaps() -> None:
    swaps = {"sampler": SwapTimes(0.0, 0.0), "trainer": SwapTimes(0.0, 0.0)}
    result = simulate([phases("a", 5, 10.0, 10.0), phases("b", 5, 10.0, 10.0)], swaps)
    assert result.makespan_s == pytest.approx(110.0)


def test_swaps_are_strict_and_show_in_the_timeline() -> None:
    swaps = {"g": SwapTimes(3.0, 2.0)}
    hold: list[Acquire | Work | Yield] = [Acquire("g"), Work(10.0), Yield("g")]
    result = simulate([Program("a", hold * 2), Program("b", hold * 2)], swaps)
    # a 10, save a 3, b 10, save b 3, bring a 2, a 10, save a 3, bring b 2, b 10
    assert result.makespan_s == pytest.approx(53.0)
    segments = [segment for segment in result.timeline if segment.group == "g"]
    assert all(first.end_s <= second.start_s for first, second in itertools.pairwise(segments))
    assert result.handoffs == 3


def test_job_that_never_yields_is_named() -> None:
    with pytest.raises(SimulationStuck, match="b"):
        simulate([Program("a", [Acquire("g")]), Program("b", [Acquire("g")])], {"g": SwapTimes(1.0, 1.0)})
