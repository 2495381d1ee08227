"""The store is lost under live holders (row 42): who says that it holds, and can be where it is, holds."""

from __future__ import annotations

import pytest

from orchestrator.core.types import CallId, GroupId, Lease, Token
from world import World

G = GroupId("g")


@pytest.fixture
def world() -> World:
    world = World(nodes=2)
    world.settle()
    return world


@pytest.fixture
def lease(world: World) -> Lease:
    """Job a holds, with contexts on both nodes; b's are saved there."""
    for job in ("b", "a"):
        world.open(f"session of {job}", job)
        call = world.ask(job, session=f"session of {job}")
        if job == "a":
            world.give("b")
        found = world.lease(call)
        assert found is not None
        world.appear(job)
    return found


def lose_the_store(world: World) -> None:
    world.crash()
    world.store.records.clear()
    world.store.ended.clear()
    world.store.waiters.clear()
    world.start()
    world.settle()


def come_back(world: World, session: str, job: str, token: Token) -> tuple[CallId, list[Token]]:
    """A client opens its session again; return its stream, and the leases that it is told it holds."""
    stream = world.open(session, job, claims=((G, token),))
    return stream, [lease.token for lease in world.opened[-1].leases]


def test_a_holder_goes_on_under_its_token(world: World, lease: Lease) -> None:
    lose_the_store(world)
    assert world.states("a") == ["running"] * 2, "it was stopped"
    waiting = world.ask("b")
    _, held = come_back(world, "session of a", "a", lease.token)
    assert held == [lease.token]
    world.advance(60.0)
    assert world.lease(waiting) is None
    assert world.states("a") == ["running"] * 2
    assert world.give("a", session="session of a", token=lease.token).yielded is not None
    world.settle()
    following = world.lease(waiting)
    assert following is not None
    assert following.token > lease.token


def test_who_is_on_the_device_and_claims_nothing_is_locked_then(world: World, lease: Lease) -> None:
    lose_the_store(world)
    world.advance(11.0)
    assert world.states("a") == ["locked"] * 2


def test_nodes_that_are_not_heard_yet_are_waited_for(world: World, lease: Lease) -> None:
    for agent in world.agents.values():
        agent.is_up = False
    lose_the_store(world)
    world.opened.clear()
    world.open("session of a", "a", claims=((G, lease.token),))
    world.open("session of b", "b")
    assert [answer.session for answer in world.opened] == ["session of b"]
    world.agent("n1").is_up = True
    world.reconnect("n1")
    assert len(world.opened) == 1
    world.agent("n2").is_up = True
    world.reconnect("n2")
    [_, answer] = world.opened
    assert [held.token for held in answer.leases] == [lease.token]


def test_nodes_that_stay_silent_are_waited_for_a_moment_only(world: World, lease: Lease) -> None:
    for agent in world.agents.values():
        agent.is_up = False
    lose_the_store(world)
    world.opened.clear()
    world.open("session of a", "a", claims=((G, lease.token),))
    world.advance(9.9)
    assert world.opened == []
    world.advance(0.2)
    [answer] = world.opened
    assert answer.leases == ()


def test_it_is_on_record_again(world: World, lease: Lease) -> None:
    lose_the_store(world)
    come_back(world, "session of a", "a", lease.token)
    world.crash()
    world.start()
    world.settle()
    view = world.view().lease
    assert view is not None
    assert (view.job, view.token, view.session) == ("a", lease.token, "session of a")


def test_nobody_who_may_hold_is_waited_for_longer_than_a_moment(world: World, lease: Lease) -> None:
    lose_the_store(world)
    waiting = world.ask("b")
    world.advance(9.5)
    assert world.lease(waiting) is None
    world.advance(1.0)
    following = world.lease(waiting)
    assert following is not None
    assert following.token > lease.token
    assert world.states("a") == ["saved"] * 2
    assert come_back(world, "session of a", "a", lease.token)[1] == []


def test_who_is_off_the_device_does_not_hold(world: World, lease: Lease) -> None:
    lose_the_store(world)
    assert come_back(world, "session of b", "b", Token(lease.token + 1))[1] == []


def test_an_older_lease_than_the_agents_know_is_over(world: World, lease: Lease) -> None:
    lose_the_store(world)
    assert come_back(world, "session of a", "a", Token(lease.token - 1))[1] == []


def test_a_lease_that_ended_by_the_record_stays_ended(world: World, lease: Lease) -> None:
    world.give("a", token=lease.token)
    world.crash()
    world.start()
    world.settle()
    assert come_back(world, "session of a", "a", lease.token)[1] == []
    assert world.view().lease is None


def test_processes_that_shared_it_share_it_again(world: World, lease: Lease) -> None:
    world.open("another of a", "a")
    assert world.lease(world.ask("a", session="another of a")) is not None
    lose_the_store(world)
    assert come_back(world, "another of a", "a", lease.token)[1] == [lease.token]
    assert come_back(world, "session of a", "a", lease.token)[1] == [lease.token]
    waiting = world.ask("b")
    world.give("a", session="session of a", token=lease.token)
    assert world.lease(waiting) is None
    world.give("a", session="another of a", token=lease.token)
    world.settle()
    assert world.lease(waiting) is not None
