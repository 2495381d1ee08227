"""Row 45: a job on three nodes, of whose snapshots each ends in one of five ways: nobody ever runs on some only."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import AgentErrorKind, CallId, ContextState, NodeId, OperationId
from world import World

OUTCOMES = ("ok", "rolled back", "indeterminate", "gone", "unreachable")
NODES = ("n1", "n2", "n3")


def world_about_to_switch() -> tuple[World, CallId]:
    """a has just yielded and runs on three nodes, its snapshots are under way; b waits and is saved on all three."""
    world = World(nodes=3)
    world.settle()
    world.ask("b")
    world.appear("b")
    world.ask("a")
    world.give("b")
    world.appear("a")
    waiting = world.ask("b")
    assert world.states("a") == ["running"] * 3
    assert world.states("b") == ["saved"] * 3
    world.send_give("a")
    world.settle(working=False)
    assert world.states("a") == ["transitioning"] * 3
    return world, waiting


def end_snapshot(world: World, node: str, outcome: str) -> None:
    """Let a's snapshot on a node end in the way named."""
    agent = world.agent(node)
    [work] = agent.running_works()
    if outcome == "unreachable":
        agent.is_stalled = True
        world.disconnect(node, working=False)
        return
    agent.fates[(work.kind, work.key[0])].appendleft(outcome)
    agent.finish(work)


def assert_nobody_runs_on_some_nodes_only(world: World) -> None:
    for job in ("a", "b"):
        states = world.states(job)
        assert "running" not in states or not {"saved", "locked", "transitioning"} & set(states), f"{job}: {states}"


@pytest.mark.parametrize("is_saved_after_all", [True, False], ids=["saved", "not saved"])
@pytest.mark.parametrize("outcomes", list(itertools.product(OUTCOMES, repeat=3)), ids=", ".join)
def test_every_outcome_leads_to_the_next_grant(outcomes: tuple[str, ...], is_saved_after_all: bool) -> None:
    world, waiting = world_about_to_switch()
    for node, outcome in zip(NODES, outcomes, strict=True):
        end_snapshot(world, node, outcome)
    world.settle()
    assert_nobody_runs_on_some_nodes_only(world)
    is_open = "indeterminate" in outcomes or "unreachable" in outcomes
    if is_open:
        world.advance(60.0)
        assert world.lease(waiting) is None, "granted although a node has not said how a's snapshot ended"
        assert_nobody_runs_on_some_nodes_only(world)
    if "unreachable" in outcomes:
        assert world.view().state == "unknown"

    for node, outcome in zip(NODES, outcomes, strict=True):
        context = world.context("a", node=node)
        if outcome == "unreachable":
            world.agent(node).is_stalled = False
            [work] = world.agent(node).running_works()
            world.agent(node).fates[("snapshot", work.key[0])].append("ok" if is_saved_after_all else "rolled back")
            world.agent(node).finish(work)
            world.reconnect(node)
        elif outcome == "indeterminate":
            assert context is not None
            world.agent(node).resolve(context, ContextState.SAVED if is_saved_after_all else ContextState.RUNNING)
        world.settle()
        assert_nobody_runs_on_some_nodes_only(world)
    world.advance(60.0)
    assert world.lease(waiting) is not None
    assert world.states("b") == ["running"] * 3
    assert world.states("a") == ["absent" if outcome == "gone" else "saved" for outcome in outcomes]
    if "rolled back" in outcomes and "ok" in outcomes:
        assert "restore_started" in {event.kind for event in world.published if event.job == "a"}, "a was not repaired"


def test_job_that_can_not_be_saved_on_one_node_is_whole_again_and_the_group_blocked() -> None:
    world, waiting = world_about_to_switch()
    context = world.context("a", node="n2")
    assert context is not None
    context.is_unsaveable = True
    world.advance(20.0)
    assert world.lease(waiting) is None
    assert "Blocked" in world.conditions()
    [blocked] = [condition for condition in world.view().conditions if condition.kind == "Blocked"]
    assert blocked.jobs == ("a",)
    assert "bytes" in blocked.reason
    assert world.states("a") == ["running"] * 3
    assert "running" not in world.states("b")


def test_blocking_job_runs_on_and_yields_again() -> None:
    world, waiting = world_about_to_switch()
    for node in NODES:
        context = world.context("a", node=node)
        assert context is not None
        context.is_unsaveable = True
    world.advance(20.0)
    again = world.ask("a")
    assert world.lease(again) is not None
    assert world.states("a") == ["running"] * 3
    for node in NODES:
        context = world.context("a", node=node)
        assert context is not None
        context.is_unsaveable = False
    world.give("a")
    world.advance(20.0)
    assert world.lease(waiting) is not None
    assert world.states("a") == ["saved"] * 3


def test_lock_that_fails_on_one_node_unlocks_all_and_is_tried_again() -> None:
    world = World(nodes=3)
    world.settle()
    world.ask("a")
    world.appear("a")
    waiting = world.ask("b")
    context = world.context("a", node="n3")
    assert context is not None
    context.is_unlockable = True
    world.give("a")
    assert world.states("a") == ["running"] * 3
    assert "snapshot_started" not in world.kinds()
    context.is_unlockable = False
    world.advance(5.0)
    assert world.lease(waiting) is not None
    assert world.states("a") == ["saved"] * 3


def test_job_that_is_torn_when_nobody_waits_any_more_does_not_stay_so() -> None:
    world = World(nodes=2)
    world.settle()
    world.ask("a")
    world.appear("a")
    waiting = world.ask("b")
    world.send_give("a")
    while channels := [channel for channel in world.deliverable() if "snapshot" not in channel[-1]]:
        world.deliver(channels[0])
    world.deliver(next(channel for channel in world.deliverable() if channel[1] == "n1"))
    [(_, node, operation)] = [channel for channel in world.deliverable() if channel[0] == "call"]
    world.channels.clear()
    world.cancel(waiting)
    world.handle(ev.AgentCallFailed(NodeId(node), OperationId(operation), AgentErrorKind.UNANSWERED, "lost"))
    world.agent("n1").push(world.agent("n1").observed())
    world.settle()
    assert world.states("a") == ["saved", "locked"]
    world.advance(5.0)
    assert world.states("a") == ["saved", "saved"]
    assert world.view().state == "idle"


def test_all_nodes_are_locked_before_any_is_saved() -> None:
    world = World(nodes=3)
    world.settle()
    world.ask("a")
    world.appear("a")
    world.ask("b")
    world.send_give("a")
    while slow := [channel for channel in world.deliverable() if "n2" not in channel]:
        world.deliver(slow[0])
    assert world.states("a") == ["locked", "running", "locked"]
    assert "snapshot_started" not in world.kinds()
    world.settle()
    assert world.states("a") == ["saved"] * 3
