"""Late, repeated and foreign Yields (rows 4, 7 and 8)."""

from __future__ import annotations

import pytest

from orchestrator.core.types import EvictAction, RefusalCode
from world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    return world


def token_of(world: World, job: str) -> int:
    lease = world.lease(world.ask(job))
    assert lease is not None
    return lease.token


def test_repeated_yield_gets_the_first_answer_again_whoever_holds_now(world: World) -> None:
    token = token_of(world, "a")
    world.ask("b")
    first = world.give("a", token=token)
    assert first.yielded is not None
    world.ask("c")
    again = world.give("a", token=token)
    assert again.yielded is not None
    assert (again.yielded.pending_waiters, again.yielded.snapshot_deferred) == (
        first.yielded.pending_waiters,
        first.yielded.snapshot_deferred,
    )
    assert world.view().lease is not None
    assert world.view().lease.job == "b"  # type: ignore[union-attr]


def test_late_yield_of_an_earlier_lease_does_not_end_the_current_one(world: World) -> None:
    old = token_of(world, "a")
    world.give("a", token=old)
    new = token_of(world, "a")
    assert world.give("a", token=old).yielded is not None
    lease = world.view().lease
    assert lease is not None
    assert lease.token == new


def test_yield_of_an_evicted_lease_is_refused_as_over(world: World) -> None:
    token = token_of(world, "a")
    world.evict(EvictAction.END_LEASE, job="a", reason="maintenance")
    refusal = world.give("a", token=token).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.FAILED_PRECONDITION
    assert "maintenance" in refusal.text


def test_yield_of_a_token_that_was_never_given_is_refused(world: World) -> None:
    token_of(world, "a")
    refusal = world.give("a", token=99).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.FAILED_PRECONDITION
    assert world.view().lease is not None


def test_yield_without_token_succeeds_again_while_nobody_was_granted(world: World) -> None:
    token_of(world, "a")
    assert world.give("a").yielded is not None
    assert world.give("a").yielded is not None


def test_yield_without_token_is_refused_once_another_was_granted(world: World) -> None:
    token_of(world, "a")
    world.give("a")
    token_of(world, "b")
    refusal = world.give("a").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED
    world.give("b")
    refusal = world.give("a").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED


def test_current_token_in_another_jobs_name_is_refused(world: World) -> None:
    token = token_of(world, "a")
    refusal = world.give("b", token=token).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED
    assert world.view().lease is not None


def test_waiting_job_can_not_yield(world: World) -> None:
    token_of(world, "a")
    world.ask("b")
    refusal = world.give("b").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED


def test_holder_whose_processes_have_ended_yields_without_a_fault(world: World) -> None:
    token = token_of(world, "a")
    world.appear("a")
    waiting = world.ask("b")
    world.disappear("a")
    assert world.give("a", token=token).yielded is not None
    assert world.lease(waiting) is not None
    assert "snapshot_started" not in world.kinds()


def test_old_yield_is_still_answered_after_a_restart(world: World) -> None:
    token = token_of(world, "a")
    world.give("a", token=token)
    token_of(world, "b")
    world.crash()
    world.start()
    world.settle()
    assert world.give("a", token=token).yielded is not None
