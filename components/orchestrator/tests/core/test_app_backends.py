"""Contexts that are saved by their applications: nothing is asked for that cannot be had, and what is lost is told."""

from __future__ import annotations

from orchestrator.core.types import ConditionKind
from world import World


def unenforced(world: World, job: str) -> None:
    """The job's contexts are of the backend app_channel from now on."""
    for node in world.node_ids:
        agent = world.agent(node)
        context = world.context(job, node=node)
        assert context is not None
        context.backend = "app_channel"
        agent.push_context(context)
    world.settle()


def locks(world: World) -> list[str]:
    return [job for node in world.node_ids for job in world.agent(node).locks_asked]


def test_turns_need_no_lock_and_no_unlock() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    unenforced(world, "a")
    waiting = world.ask("b")
    world.give("a")
    assert world.state("a") == "saved"
    assert world.lease(waiting) is not None
    world.appear("b")
    unenforced(world, "b")
    back = world.ask("a")
    world.give("b")
    assert world.answers[back].context_restored
    assert locks(world) == []


def test_job_on_several_nodes_is_saved_without_a_barrier_of_locks() -> None:
    world = World(3)
    world.settle()
    world.ask("a")
    world.appear("a")
    unenforced(world, "a")
    waiting = world.ask("b")
    world.give("a")
    assert world.lease(waiting) is not None
    assert [world.state("a", node=node) for node in world.node_ids] == ["saved"] * 3
    assert locks(world) == []


def test_job_that_cannot_be_saved_blocks_the_group_however_much_room_there_is() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", size=1)
    unenforced(world, "a")
    context = world.context("a")
    assert context is not None
    context.is_unsaveable = True
    waiting = world.ask("b")
    world.give("a")
    world.advance(10.0)
    assert world.lease(waiting) is None
    [blocked] = [c for c in world.view().conditions if c.kind is ConditionKind.BLOCKED]
    assert blocked.jobs == ("a",)
    assert "bytes" not in blocked.reason
    assert locks(world) == []
    context.is_unsaveable = False
    world.advance(30.0)
    assert world.lease(waiting) is not None


def test_job_that_registers_without_the_lease_is_shown_and_taken_off_before_the_next_grant() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    world.appear("b")
    world.agent("n1").locks_asked.clear()
    unenforced(world, "b")
    context = world.context("b")
    assert context is not None
    [intruder] = [c for c in world.view().conditions if c.kind is ConditionKind.INTRUDER]
    assert "nothing but itself can lock it" in intruder.reason
    world.give("a")
    waiting = world.ask("c")
    assert world.lease(waiting) is not None
    assert world.state("b") == "saved"
    assert locks(world) == ["b"] * locks(world).count("b")


def test_what_was_dropped_is_told_once_with_the_next_grant() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    unenforced(world, "a")
    waiting = world.ask("b")
    context = world.context("a")
    assert context is not None
    context.discarded_tags = ("weights", "kv_cache")
    world.give("a")
    assert world.answers[waiting].discarded == ()
    back = world.ask("a", request="again")
    world.give("b")
    assert world.answers[back].discarded == ("weights", "kv_cache")
    repeated = world.ask("a", request="again")
    assert world.answers[repeated].discarded == ("weights", "kv_cache"), "the same grant: its reply may have been lost"
    world.give("a")
    assert world.answers[world.ask("a")].discarded == (), "it kept the device, and what it has filled again"


def test_what_was_dropped_is_told_after_a_restart_rather_twice_than_never() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    unenforced(world, "a")
    world.ask("b")
    context = world.context("a")
    assert context is not None
    context.discarded_tags = ("*",)
    world.give("a")
    world.crash()
    world.start()
    world.settle()
    back = world.ask("a")
    world.give("b")
    world.settle()
    assert world.answers[back].discarded == ("*",)
