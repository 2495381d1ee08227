"""A request that would close a cycle of waits is refused with the cycle in words (row 31)."""

from __future__ import annotations

import pytest

from orchestrator.core.types import GroupId, JobId, RefusalCode
from orchestrator.core.wait_graph import WaitGraph
from world import World


@pytest.fixture
def world() -> World:
    world = World(groups=("g1", "g2", "g3"))
    world.settle()
    return world


def test_two_jobs_that_want_each_others_group(world: World) -> None:
    world.ask("a", "g1")
    world.ask("b", "g2")
    waiting = world.ask("a", "g2")
    refusal = world.refusal(world.ask("b", "g1"))
    assert refusal.code is RefusalCode.ABORTED
    for word in ("'a'", "'b'", "'g1'", "'g2'"):
        assert word in refusal.text
    world.give("b", "g2")
    assert world.lease(waiting) is not None


def test_cycle_through_three_jobs(world: World) -> None:
    for job, group in (("a", "g1"), ("b", "g2"), ("c", "g3")):
        world.ask(job, group)
    world.ask("a", "g2")
    world.ask("b", "g3")
    assert world.refusal(world.ask("c", "g1")).code is RefusalCode.ABORTED


def test_cycle_through_a_waiter_ahead(world: World) -> None:
    world.ask("m", "g1")
    world.ask("b", "g2")
    world.ask("a", "g1")
    world.ask("b", "g1")
    # a is ahead of b in g1 and will hold it; b holds g2: if a waited for g2, neither would go on
    assert world.refusal(world.ask("a", "g2")).code is RefusalCode.ABORTED


def test_waits_without_a_cycle_are_admitted(world: World) -> None:
    world.ask("a", "g1")
    world.ask("b", "g2")
    assert world.ask("c", "g1") not in world.answers
    assert world.ask("a", "g2") not in world.answers


def test_job_that_is_being_switched_in_may_ask_again(world: World) -> None:
    world.ask("m", "g1")
    world.appear("m", "g1")
    first = world.ask("a", "g1")
    world.send_give("m", "g1")
    world.settle(working=False)
    assert world.view("g1").state == "switching"
    second = world.ask("a", "g1")
    assert world.lease(first) is not None
    assert world.lease(second) is not None


def test_refused_job_may_ask_again_when_the_cycle_is_gone(world: World) -> None:
    world.ask("a", "g1")
    world.ask("b", "g2")
    waiting = world.ask("a", "g2")
    world.ask("b", "g1")
    world.cancel(waiting)
    assert world.ask("b", "g1") not in world.answers


def test_job_that_would_wait_for_those_behind_it_is_not_let_in_before_them() -> None:
    graph = WaitGraph()
    graph.wait(GroupId("g1"), JobId("b"), 1)
    graph.wait(GroupId("g1"), JobId("a"), 2)
    graph.hold(GroupId("g2"), JobId("b"))
    assert not graph.depends_on_waiter(GroupId("g1"), JobId("a"))
    graph.wait(GroupId("g2"), JobId("a"), 1)
    assert graph.depends_on_waiter(GroupId("g1"), JobId("a"))


def test_job_that_has_nothing_else_costs_nothing() -> None:
    graph = WaitGraph()
    graph.hold(GroupId("g"), JobId("h"))
    for number in range(1000):
        graph.wait(GroupId("g"), JobId(f"j{number}"), number)
    assert graph.cycle(GroupId("g"), JobId("new")) == ()
    graph.wait(GroupId("other"), JobId("j5"), 1)
    assert graph._before(GroupId("g"), JobId("new"), None, JobId("new")) == [("h", True), ("j5", False)]
