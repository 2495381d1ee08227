"""A job whose context is on one node, and for which nothing else is left to be done, is let on by its restore: no
Unlock follows it. What becomes of that when the way there is cut off."""

from __future__ import annotations

import pytest

from orchestrator.core import effects as fx
from orchestrator.core.types import CallId, GroupId, JobId, RequestId
from world import World

G = GroupId("g")


def held_by_a(nodes: int = 1, places: dict[str, str] | None = None) -> World:
    """Job a holds the group, b's context is saved; `places`: where each has one, if not everywhere."""
    world = World(nodes=nodes)
    world.settle()
    for job in ("b", "a"):
        world.ask(job)
        world.appear(job, nodes=[places[job]] if places else None, size=40)
        if job == "b":
            world.give("b")
    return world


@pytest.fixture
def world() -> World:
    return held_by_a()


def unlocks(world: World) -> int:
    return sum(isinstance(call, fx.UnlockContext) for call in world.sent)


def restores(world: World) -> list[bool]:
    """Of each restore that was asked for, whether it is to be left locked."""
    return [call.leave_locked for call in world.sent if isinstance(call, fx.StartRestore)]


def on_its_way(world: World, request: str = "r") -> CallId:
    """Let a's lease go to b, until b's restore is under way."""
    world.sent.clear()
    call = world.ask("b", request=request)
    world.send_give("a")
    world.settle(working=False)
    [save] = world.agent().running_works()
    world.agent().finish(save)
    world.settle(working=False)
    [restore] = world.agent().running_works()
    assert (restore.kind, restore.leave_locked) == ("restore", False)
    return call


def test_a_restore_lets_the_next_holder_on(world: World) -> None:
    call = on_its_way(world)
    assert world.lease(call) is None
    world.settle()
    assert world.lease(call) is not None
    assert unlocks(world) == 0
    assert (world.states("a"), world.states("b")) == (["saved"], ["running"])


def test_nobody_is_answered_before_the_grant_is_recorded(world: World) -> None:
    call = on_its_way(world)
    world.settle(granting=False)
    assert world.states("b") == ["running"]
    assert world.lease(call) is None
    world.store.fates.append("failed")
    world.settle()
    assert world.lease(call) is None
    world.advance(1.0)
    assert world.lease(call) is not None


def test_what_its_agent_left_locked_is_unlocked_with_the_grant(world: World) -> None:
    call = on_its_way(world)
    world.agent().fates[("restore", JobId("b"))].append("left locked")
    world.settle()
    assert world.lease(call) is not None
    assert unlocks(world) == 1
    assert world.states("b") == ["running"]


def test_a_waiter_that_leaves_while_its_context_comes_back_leaves_its_job_the_last_holder(world: World) -> None:
    call = on_its_way(world)
    world.cancel(call)
    world.settle()
    assert world.states("b") == ["running"]
    assert world.store.records[G].resident == "b"
    assert "intruded" not in world.kinds()
    again = world.ask("a")
    assert world.lease(again) is not None
    assert (world.states("a"), world.states("b")) == (["running"], ["saved"])


def test_who_comes_back_indeterminate_is_no_intruder_when_it_runs_at_last(world: World) -> None:
    call = on_its_way(world)
    agent = world.agent()
    agent.fates[("restore", JobId("b"))].append("indeterminate running")
    world.cancel(call)
    world.settle()
    context = agent.contexts[(JobId("b"), G)]
    agent.resolve(context, context.state.RUNNING)
    world.settle()
    assert world.states("b") == ["running"]
    assert "intruded" not in world.kinds()
    assert world.store.records[G].resident == "b"


@pytest.mark.parametrize("fate", ["rolled back", "indeterminate saved"])
def test_a_restore_that_did_not_come_about_leaves_nobody_on_the_device(world: World, fate: str) -> None:
    call = on_its_way(world)
    world.agent().fates[("restore", JobId("b"))].append(fate)
    world.cancel(call)
    world.settle()
    context = world.agent().contexts[(JobId("b"), G)]
    if context.by_operation is not None:
        world.agent().resolve(context, context.state.SAVED)
    world.settle()
    assert (world.states("a"), world.states("b")) == (["saved"], ["saved"])
    assert world.store.records[G].resident == "a"
    assert world.store.records[G].intent is None


@pytest.mark.parametrize("is_remembered", [True, False])
def test_an_orchestrator_that_is_killed_meanwhile_finds_the_job_it_meant(world: World, is_remembered: bool) -> None:
    on_its_way(world)
    token = world.store.records[G].last_token
    world.crash()
    if not is_remembered:
        world.store.waiters.pop((G, RequestId("r")))
    [restore] = world.agent().running_works()
    world.agent().finish(restore)
    world.start()
    world.settle()
    assert world.states("b") == ["running"]
    assert "intruded" not in world.kinds()
    if is_remembered:
        lease = world.lease(world.ask("b", request="r"))
        assert lease is not None
        assert lease.token == token
    else:
        assert world.store.records[G].resident == "b"


def test_an_agent_that_is_killed_between_restore_and_unlock_goes_on(world: World) -> None:
    call = on_its_way(world)
    agent = world.agent()
    agent.fates[("restore", JobId("b"))].append("resumed")
    agent.crash()
    world.disconnect(working=False)
    assert world.lease(call) is None
    world.reconnect()
    assert world.lease(call) is not None
    assert world.states("b") == ["running"]


def test_a_job_on_several_nodes_is_unlocked_when_it_is_back_on_all() -> None:
    world = held_by_a(nodes=2)
    call = world.ask("b")
    world.sent.clear()
    world.give("a")
    assert world.lease(call) is not None
    assert restores(world) == [True, True]
    assert unlocks(world) == 2


def test_nobody_is_let_on_while_another_node_is_not_clear() -> None:
    world = held_by_a(nodes=2, places={"a": "n1", "b": "n2"})
    call = world.ask("b")
    world.sent.clear()
    world.give("a")
    assert world.lease(call) is not None
    assert restores(world) == [True], "a was on its way off the other node"


def test_a_node_that_is_clear_already_holds_nobody_up() -> None:
    world = held_by_a(nodes=2, places={"a": "n1", "b": "n1"})
    call = world.ask("b")
    world.sent.clear()
    world.give("a")
    assert world.lease(call) is not None
    assert restores(world) == [False]
    assert unlocks(world) == 0
