"""Nodes that leave a group, or go for good, while the orchestrator runs."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core import events as ev
from orchestrator.core.types import ConditionKind
from world import World


def leave(world: World, *, keep: int) -> None:
    """The group keeps only its first `keep` nodes."""
    [config] = world.configs
    world.handle(ev.GroupConfigured(replace(config, nodes=config.nodes[:keep])))
    world.settle()


def test_a_deleted_node_costs_the_job_that_had_memory_there_and_nobody_else() -> None:
    world = World(nodes=2)
    world.settle()
    world.ask("a")
    world.appear("a")
    waiting = world.ask("b")
    world.handle(ev.NodeDeleted(world.node_ids[1]))
    leave(world, keep=1)
    assert world.lease(waiting) is not None
    refusal = world.answers[world.ask("a")].refusal
    assert refusal is not None
    assert "'n2' is lost with the node" in refusal.text


def test_a_group_without_a_node_grants_nothing_and_says_so() -> None:
    world = World()
    world.settle()
    leave(world, keep=0)
    call = world.ask("a")
    world.settle()
    assert world.lease(call) is None
    assert [condition.kind for condition in world.view().conditions] == [ConditionKind.MISCONFIGURED]
    [config] = world.configs
    world.handle(ev.GroupConfigured(config))
    world.settle()
    assert world.lease(call) is not None
    assert not world.view().conditions
