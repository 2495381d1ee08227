"""The next holder's context is unlocked while its grant is being recorded: what a failing store and a killed
orchestrator make of that. The recorded intent names the job, and everybody else is off the device by then."""

from __future__ import annotations

import pytest

from orchestrator.core.types import CallId, GroupId, RequestId
from world import World


@pytest.fixture
def world() -> World:
    """Job a holds the group, b's context is saved."""
    world = World(nodes=2)
    world.settle()
    for job in ("b", "a"):
        world.ask(job)
        world.appear(job, size=40)
        if job == "b":
            world.give("b")
    assert world.states("b") == ["saved"] * 2
    return world


def hand_on(world: World) -> CallId:
    """Let a's lease go to b, until b's context is unlocked everywhere and its grant is not recorded; b's call."""
    call = world.ask("b", request="r")
    world.send_give("a")
    world.settle(granting=False)
    assert world.states("b") == ["running"] * 2, world.states("b")
    assert world.lease(call) is None
    return call


def test_context_is_unlocked_while_the_grant_is_being_recorded(world: World) -> None:
    call = hand_on(world)
    world.settle()
    assert world.lease(call) is not None


def test_nobody_is_answered_before_the_grant_is_recorded(world: World) -> None:
    call = hand_on(world)
    world.store.fates.append("failed")
    world.settle()
    assert world.lease(call) is None
    assert world.states("a") == ["saved"] * 2
    world.advance(1.0)
    lease = world.lease(call)
    assert lease is not None
    assert world.store.records[GroupId("g")].lease == lease


def test_grant_that_was_not_recorded_is_made_by_the_next_orchestrator(world: World) -> None:
    hand_on(world)
    token = world.store.records[GroupId("g")].last_token
    world.crash()
    world.start()
    again = world.ask("b", request="r")
    lease = world.lease(again)
    assert lease is not None
    assert lease.token == token
    assert world.states("b") == ["running"] * 2


def test_who_was_unlocked_without_a_grant_counts_as_the_last_holder(world: World) -> None:
    hand_on(world)
    world.crash()
    world.store.waiters.pop((GroupId("g"), RequestId("r")))
    world.start()
    world.settle()
    assert world.states("b") == ["running"] * 2
    assert "intruded" not in world.kinds()
    assert world.store.records[GroupId("g")].resident == "b"
    call = world.ask("c")
    assert world.lease(call) is not None
    assert "running" not in world.states("b")


def test_who_may_have_been_unlocked_is_not_forgotten_before_every_node_is_heard(world: World) -> None:
    hand_on(world)
    world.crash()
    world.store.waiters.pop((GroupId("g"), RequestId("r")))
    world.agent("n2").is_up = False
    world.start()
    call = world.ask("c")
    intent = world.store.records[GroupId("g")].intent
    assert intent is not None
    assert intent.job == "b"
    world.reconnect("n2")
    assert world.lease(call) is not None
    assert "running" not in world.states("b")


def test_who_was_meant_and_not_unlocked_is_no_last_holder(world: World) -> None:
    world.ask("b", request="r")
    world.send_give("a")
    world.settle(working=False)
    world.crash()
    world.store.waiters.pop((GroupId("g"), RequestId("r")))
    world.start()
    world.settle()
    assert world.store.records[GroupId("g")].resident == "a"


def test_waiter_that_leaves_beside_the_record_leaves_its_job_the_last_holder(world: World) -> None:
    call = hand_on(world)
    world.cancel(call)
    assert world.view().lease is None
    assert world.states("a") == ["saved"] * 2
    next_call = world.ask("a")
    assert world.lease(next_call) is not None
    assert "running" not in world.states("b")
