"""One group on one node: who gets it, in which order, and what happens to contexts meanwhile."""

from __future__ import annotations

import pytest

from orchestrator.core.types import ContextState, EvictAction, GroupId, JobId, RefusalCode
from world import World


def test_first_job_without_context_is_granted_at_once() -> None:
    world = World()
    world.settle()
    lease = world.lease(world.ask("a"))
    assert lease is not None
    assert lease.token == 1
    assert world.view().state == "locked"


def test_second_job_waits_until_the_first_yields() -> None:
    world = World()
    world.settle()
    first = world.lease(world.ask("a"))
    second = world.ask("b")
    assert world.lease(second) is None
    assert first is not None
    answer = world.give("a", token=first.token)
    assert answer.yielded is not None
    assert answer.yielded.pending_waiters == 1
    assert not answer.yielded.snapshot_deferred
    lease = world.lease(second)
    assert lease is not None
    assert lease.token > first.token


def test_context_of_the_last_holder_is_saved_before_the_next_one_is_granted() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    call = world.ask("b")
    world.give("a")
    assert world.state("a") == "saved"
    assert world.lease(call) is not None
    world.appear("b")
    back = world.ask("a")
    world.give("b")
    assert world.state("b") == "saved"
    assert world.state("a") == "running"
    assert world.answers[back].context_restored


def test_memory_that_no_agent_has_seen_yet_is_saved_too() -> None:
    """A job that takes memory and yields within an agent's sampling period is still said to be idle."""
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", is_unsampled=True)
    call = world.ask("b")
    world.give("a")
    assert world.lease(call) is not None
    assert world.state("a") == "saved"


def test_memory_that_no_agent_has_seen_yet_is_saved_for_a_job_that_comes_later() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", is_unsampled=True)
    world.give("a")
    assert world.lease(world.ask("b")) is not None
    assert world.state("a") == "saved"


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_memory_of_an_evicted_job_that_no_agent_has_seen_yet_is_saved_too(is_waited_for: bool) -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", is_unsampled=True)
    call = world.ask("b") if is_waited_for else None
    world.evict(EvictAction.END_LEASE, job="a")
    assert world.state("a") == "saved"
    assert call is None or world.lease(call) is not None
    assert world.view().state == ("locked" if is_waited_for else "idle")


def test_an_evicted_job_is_looked_at_once() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.agent().register(JobId("a"), GroupId("g"))
    world.settle()
    world.evict(EvictAction.END_LEASE, job="a")
    for job in "bcb":
        lease = world.lease(world.ask(job))
        assert lease is not None
        world.give(job, token=lease.token)
    assert world.kinds().count("snapshot_started") == 1


def test_yield_with_nobody_waiting_leaves_the_context_on_the_device() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    answer = world.give("a")
    assert answer.yielded is not None
    assert answer.yielded.snapshot_deferred
    assert world.state("a") == "running"
    assert world.view().state == "idle_yielded"
    lease = world.lease(world.ask("a"))
    assert lease is not None
    assert "snapshot_started" not in world.kinds()


def test_memory_that_no_agent_has_reported_yet_is_saved_all_the_same() -> None:
    world = World()
    world.settle()
    context = world.agent().register(JobId("a"), GroupId("g"))
    world.ask("a")
    context.state = ContextState.RUNNING  # between two samples of the agent
    waiting = world.ask("b")
    world.give("a")
    assert world.state("a") == "saved"
    assert world.lease(waiting) is not None


def test_idle_process_of_the_last_holder_stays_idle() -> None:
    world = World()
    world.settle()
    world.agent().register(JobId("a"), GroupId("g"))
    world.ask("a")
    waiting = world.ask("b")
    world.give("a")
    assert world.lease(waiting) is not None
    assert world.state("a") == "idle"
    assert [context.context.state for context in world.view().contexts] == [ContextState.IDLE]
    again = world.ask("a")
    world.give("b")
    assert world.lease(again) is not None
    assert world.conditions() == set()


def test_yield_by_a_job_that_does_not_hold_changes_nothing() -> None:
    world = World()
    world.settle()
    world.ask("a")
    refusal = world.give("b").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED
    assert world.view().state == "locked"
