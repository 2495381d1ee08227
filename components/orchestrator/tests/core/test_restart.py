"""The orchestrator is killed and starts again from its store (rows 18, 19 and 42 as far as tokens go)."""

from __future__ import annotations

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import Epoch, GroupId, Token
from world import World


@pytest.fixture
def world() -> World:
    world = World(nodes=2)
    world.settle()
    return world


def restart(world: World, *, writes_land: bool = False) -> None:
    world.crash(writes_land=writes_land)
    world.start()


def test_holder_keeps_its_lease_and_token(world: World) -> None:
    world.open("s", "a")
    lease = world.lease(world.ask("a", session="s", request="r"))
    restart(world)
    world.settle()
    world.open("s", "a")
    again = world.lease(world.ask("a", session="s", request="r"))
    assert again == lease
    assert lease is not None
    assert world.give("a", token=lease.token).yielded is not None


def test_lease_after_a_restart_has_one_whole_time_to_live(world: World) -> None:
    world.open("s", "a")
    world.ask("a", session="s")
    world.advance(29.0)
    restart(world)
    world.advance(29.0)
    assert world.view().lease is not None
    world.advance(2.0)
    assert world.view().lease is None


def test_switch_under_way_is_finished(world: World) -> None:
    world.ask("a")
    world.appear("a")
    world.ask("b", request="r")
    world.send_give("a")
    world.settle(working=False)
    assert world.states("a") == ["transitioning"] * 2
    restart(world)
    again = world.ask("b", request="r")
    world.settle()
    assert world.states("a") == ["saved"] * 2
    assert world.lease(again) is not None


def test_operation_that_ended_while_nobody_listened_is_not_repeated(world: World) -> None:
    world.ask("a")
    world.appear("a")
    world.ask("b", request="r")
    world.send_give("a")
    world.settle(working=False)
    world.crash()
    for node in ("n1", "n2"):
        [work] = world.agent(node).running_works()
        world.agent(node).finish(work)
    world.start()
    again = world.ask("b", request="r")
    assert world.lease(again) is not None
    assert [len(world.agent(node).works) for node in ("n1", "n2")] == [1, 1]


def test_waiters_that_come_back_are_served_in_the_old_order(world: World) -> None:
    world.ask("a", request="ra")
    world.ask("b", request="rb")
    world.ask("c", request="rc")
    restart(world)
    third = world.ask("c", request="rc")
    world.give("a")
    assert world.lease(third) is None, "b has a moment to come back"
    second = world.ask("b", request="rb")
    assert world.lease(second) is not None
    assert world.lease(third) is None


def test_waiter_that_does_not_come_back_holds_up_nobody_for_longer_than_two_seconds(world: World) -> None:
    world.ask("a")
    world.ask("b", request="rb")
    world.ask("c", request="rc")
    restart(world)
    third = world.ask("c", request="rc")
    world.give("a")
    world.advance(2.5)
    assert world.lease(third) is not None


def test_status_is_there_before_any_agent_has_answered(world: World) -> None:
    world.ask("a")
    restart(world)
    lease = world.view().lease
    assert lease is not None
    assert lease.job == "a"


@pytest.mark.parametrize("writes_land", [True, False])
def test_crash_in_the_middle_of_a_grants_write(world: World, writes_land: bool) -> None:
    call = world.send_ask("a", request="r")
    assert world.lease(call) is None
    restart(world, writes_land=writes_land)
    world.settle()
    assert (world.view().lease is not None) == writes_land
    lease = world.lease(world.ask("a", request="r"))
    assert lease is not None
    assert lease.token == 1


def test_tokens_rise_above_what_the_agents_have_seen_when_the_store_is_lost(world: World) -> None:
    world.agent("n1").fences[GroupId("g")] = (Token(40), Epoch(1))
    world.store.records.clear()
    restart(world)
    call = world.ask("a")
    world.advance(11.0)  # a holder may be back meanwhile: test_lost_store.py
    lease = world.lease(call)
    assert lease is not None
    assert lease.token > 40


def test_orchestrator_that_was_replaced_steps_down(world: World) -> None:
    world.agent("n1").fences[GroupId("g")] = (Token(0), Epoch(99))
    world.disconnect("n1")
    world.reconnect("n1")
    assert world.stepped_down is not None
    assert "99" in world.stepped_down


def test_orchestrator_that_is_about_to_stop_finishes_its_switch_and_begins_no_other(world: World) -> None:
    world.ask("a")
    world.appear("a")
    second, third = world.ask("b"), world.ask("c")
    world.send_give("a")
    world.settle(working=False)
    world.handle(ev.Draining())
    assert world.core.unsettled() == ("g",)
    world.settle()
    assert world.lease(second) is not None
    assert world.core.unsettled() == ()
    world.appear("b")
    world.give("b")
    assert world.lease(third) is None
    assert world.states("b") == ["running"] * 2


def test_fault_survives_a_restart(world: World) -> None:
    world.ask("a")
    world.appear("a")
    context = world.context("a")
    assert context is not None
    context.state = context.state.FAULTED
    world.agent("n1").push_context(context)
    world.settle()
    restart(world)
    world.settle()
    assert world.answers[world.ask("a")].refusal is not None
