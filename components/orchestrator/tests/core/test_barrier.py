"""A job on several nodes is locked on all of them before it is saved on any."""

from __future__ import annotations

import pytest

from orchestrator.core import effects as fx
from world import World


@pytest.fixture
def world() -> World:
    world = World(nodes=2)
    world.settle()
    world.ask("a")
    return world


def hand_over(world: World) -> bool:
    """a yields while b waits; tell whether b was granted."""
    waiting = world.ask("b")
    world.give("a")
    world.advance(1.0)
    return world.lease(waiting) is not None


def snapshots(world: World) -> list[str]:
    return [str(one.node) for one in world.trace if isinstance(one, fx.StartSnapshot)]


@pytest.mark.parametrize("unsampled", [(), ("n1",), ("n2",), ("n1", "n2")])
def test_a_job_that_cannot_be_locked_on_one_node_is_saved_on_none(world: World, unsampled: tuple[str, ...]) -> None:
    """Also where agents have not noticed yet that it uses the device."""
    for node in world.node_ids:
        world.appear("a", nodes=[node], is_unsampled=node in unsampled)
    context = world.context("a", node="n2")
    assert context is not None
    context.is_unlockable = context.is_unsaveable = True
    assert not hand_over(world)
    assert snapshots(world) == []
    assert world.states("a") == ["running", "running"]


@pytest.mark.parametrize("unsampled", [(), ("n1",), ("n2",), ("n1", "n2")])
def test_all_nodes_are_locked_before_the_first_save(world: World, unsampled: tuple[str, ...]) -> None:
    for node in world.node_ids:
        world.appear("a", nodes=[node], is_unsampled=node in unsampled)
    states: list[list[str]] = []
    world.on_save = lambda _: states.append(world.states("a"))
    assert hand_over(world)
    assert states[0] == ["locked", "locked"]
    assert world.states("a") == ["saved", "saved"]


def test_a_job_that_has_nothing_on_the_device_is_locked_and_looked_at_once(world: World) -> None:
    for node in world.node_ids:
        world.agent(node).register(world.grants[0].job, world.grants[0].group)
    assert hand_over(world)
    assert len([one for one in world.trace if isinstance(one, fx.LockContext)]) == 2
    assert len(snapshots(world)) == 2


def test_one_context_costs_no_lock() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", is_unsampled=True)
    assert hand_over(world)
    assert not [one for one in world.trace if isinstance(one, fx.LockContext)]
