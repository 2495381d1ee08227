"""The record decides: what a failing store does to leases and answers (rows 30, 35 and 39)."""

from __future__ import annotations

import pytest

from orchestrator.core import effects as fx
from orchestrator.core.types import RefusalCode
from world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    return world


def test_grant_waits_until_it_is_recorded(world: World) -> None:
    world.store.fates.extend(["failed"] * 3)
    call = world.ask("a")
    assert world.lease(call) is None
    assert "StoreUnavailable" in world.conditions()
    world.advance(10.0)
    assert world.lease(call) is not None
    assert "StoreUnavailable" not in world.conditions()


def test_yield_that_could_not_be_recorded_says_so_and_succeeds_when_repeated(world: World) -> None:
    lease = world.lease(world.ask("a"))
    assert lease is not None
    world.store.fates.append("failed")
    refusal = world.give("a", token=lease.token).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.UNAVAILABLE
    world.advance(5.0)
    assert world.give("a", token=lease.token).yielded is not None


@pytest.mark.parametrize("fate", ["unclear written", "unclear lost"])
def test_write_that_was_cut_off_is_read_back_before_anyone_is_answered(world: World, fate: str) -> None:
    lease = world.lease(world.ask("a"))
    waiting = world.ask("b")
    assert lease is not None
    world.store.fates.append(fate)
    call = world.send_give("a", token=lease.token)
    world.settle()
    answer = world.answers[call]
    record = world.store.records[lease.group]
    assert (answer.yielded is not None) == (fate == "unclear written")
    world.advance(5.0)
    assert world.lease(waiting) is not None
    assert world.store.records[lease.group].version >= record.version


def test_agents_hear_of_no_token_before_it_is_recorded(world: World) -> None:
    world.ask("a")
    world.appear("a")
    world.ask("b")
    world.store.fates.extend(["failed"] * 3)
    world.send_give("a")
    world.settle()
    assert world.state("a") == "running"
    assert all(token <= 1 for token, _ in world.agent().fences.values())
    world.advance(10.0)
    assert world.state("a") == "saved"


def test_foreign_record_makes_the_orchestrator_step_down(world: World) -> None:
    world.ask("a")
    world.store.fates.append("unclear lost")
    call = world.send_give("a")
    record = world.store.records[world.grants[0].group]
    world.store.records[record.group] = type(record)(group=record.group, version=record.version)
    while ("store", "g") in world.channels and world.stepped_down is None:
        if any(isinstance(effect, fx.ReadRecord) for effect in world.trace):
            world.store.records[record.group] = type(record)(
                group=record.group,
                version=type(record.version)(record.version + 7),
            )
        world.deliver(("store", "g"))
    assert world.stepped_down is not None
    assert call not in world.answers
