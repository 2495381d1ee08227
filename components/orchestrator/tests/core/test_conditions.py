"""What an operator should know is shown while it is so, and told when it begins and when it ends."""

from __future__ import annotations

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import (
    AcceleratorId,
    AcceleratorView,
    AgentErrorKind,
    ContextState,
    EvictAction,
    GroupConfig,
    GroupId,
    NodeId,
    OnUnsaveable,
)
from world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    return world


def told(world: World, *kinds: str) -> list[str]:
    """Which of these were published, in their order."""
    return [kind for kind in world.kinds() if kind in kinds]


# ---------------------------------------------------------------- Starved


def test_missed_renewals_of_a_holder_are_told_and_their_return_too(world: World) -> None:
    world.open("s", "a")
    world.ask("a", session="s")
    world.advance(29.0)
    assert told(world, "starved") == []
    world.advance(2.0)
    assert told(world, "starved", "starvation_ended") == ["starved"]
    [condition] = world.view().conditions
    assert (condition.kind, condition.jobs, condition.since_s) == ("Starved", ("a",), 1030.0)
    world.advance(100.0)
    world.open("s", "a")
    assert told(world, "starved", "starvation_ended") == ["starved", "starvation_ended"]
    assert world.conditions() == set()
    assert world.view().lease is not None


def test_a_holder_that_renews_in_time_is_never_starved(world: World) -> None:
    world.open("s", "a")
    world.ask("a", session="s")
    for _ in range(12):
        world.advance(10.0)
        world.open("s", "a")
    assert told(world, "starved") == []


def test_who_holds_nothing_is_not_starved(world: World) -> None:
    world.open("s", "a")
    lease = world.lease(world.ask("a", session="s"))
    assert lease is not None
    world.give("a", token=lease.token, session="s")
    world.advance(100.0)
    assert told(world, "starved") == []
    world.ask("a", session="s")
    assert told(world, "starved") == ["starved"]


def test_a_starved_process_that_shares_a_lease_is_told_too(world: World) -> None:
    for session in ("s1", "s2"):
        world.open(session, "a")
        world.ask("a", session=session)
    world.advance(20.0)
    world.open("s1", "a")
    world.advance(20.0)
    [condition] = world.view().conditions
    assert "'s2'" in condition.reason
    [event] = [event for event in world.published if event.kind == "starved"]
    assert event.job == "a"
    assert "'s2'" in event.detail


def test_starvation_ends_with_the_lease(world: World) -> None:
    world.open("s", "a")
    world.ask("a", session="s")
    world.advance(31.0)
    world.give("a", session="s")
    assert told(world, "starved", "starvation_ended") == ["starved", "starvation_ended"]


# ---------------------------------------------------------------- other conditions that come and go by themselves


def test_unexplained_context_is_told_and_its_explanation_too(world: World) -> None:
    world.ask("a")
    world.appear("a", pid=7)
    world.ask("b")
    world.give("a")
    context = world.context("a")
    assert context is not None
    assert context.state is ContextState.SAVED
    context.state = ContextState.IDLE
    world.agent().push_context(context)
    world.settle()
    assert told(world, "unexplained", "explained") == ["unexplained"]
    assert world.conditions() == {"Unexplained"}
    world.evict(EvictAction.CLEAR_FAULT, job="a")
    assert told(world, "unexplained", "explained") == ["unexplained", "explained"]
    assert world.conditions() == set()


def test_store_that_takes_no_records_is_told_and_that_it_does_again(world: World) -> None:
    world.store.fates.extend(["failed", "failed"])
    asking = world.ask("a")
    assert told(world, "store_failed", "store_recovered") == ["store_failed"]
    assert world.conditions() == {"StoreUnavailable"}
    world.advance(3.0)
    assert told(world, "store_failed", "store_recovered") == ["store_failed", "store_recovered"]
    assert world.lease(asking) is not None


def test_accelerator_of_two_groups_is_told() -> None:
    world = World(groups=("g", "h"))
    world.settle()
    agent = world.agent()
    both = (GroupId("g"), GroupId("h"))
    world.handle(ev.AcceleratorChanged(agent.node, AcceleratorView(AcceleratorId("GPU-0"), 0, 100, both)))
    assert [(event.kind, event.group) for event in world.published if event.kind == "overlapped"] == [
        ("overlapped", "h")
    ]
    world.handle(ev.AcceleratorChanged(agent.node, AcceleratorView(AcceleratorId("GPU-0"), 0, 100, both[:1])))
    assert "overlap_ended" in world.kinds()


def test_difference_between_configuration_and_agent_is_told(world: World) -> None:
    [config] = world.configs
    accelerators = ((NodeId("n1"), AcceleratorId("GPU-7")),)
    world.handle(ev.GroupConfigured(GroupConfig(group=config.group, nodes=config.nodes, accelerators=accelerators)))
    assert told(world, "misconfigured", "configured") == ["misconfigured"]
    assert world.conditions() == {"Misconfigured"}
    world.handle(ev.GroupConfigured(config))
    assert told(world, "misconfigured", "configured") == ["misconfigured", "configured"]


def test_node_without_named_accelerators_gives_all_that_it_has() -> None:
    world = World(nodes=2)
    world.settle()
    [config] = world.configs
    named = ((NodeId("n1"), world.agent().accelerator_view(config.group).accelerator),)
    world.handle(ev.GroupConfigured(GroupConfig(group=config.group, nodes=config.nodes, accelerators=named)))
    assert world.conditions() == set()


def test_node_that_was_never_heard_is_told_as_unreachable() -> None:
    world = World(nodes=2)
    world.channels.pop(("stream", "n2"))
    world.agent("n2").is_connected = False
    world.settle()
    world.advance(9.0)
    assert told(world, "node_unreachable") == []
    world.advance(2.0)
    [event] = [event for event in world.published if event.kind == "node_unreachable"]
    assert event.node == "n2"
    world.reconnect("n2")
    assert told(world, "node_unreachable", "node_reachable") == ["node_unreachable", "node_reachable"]


# ---------------------------------------------------------------- kills that fail


def unsaveable(world: World) -> None:
    """a was the last holder and cannot be saved; b waits, and does not fit beside it."""
    world.ask("b")
    world.appear("b")
    world.ask("a")
    world.give("b")
    world.appear("a")
    context = world.context("a")
    assert context is not None
    context.is_unsaveable = True
    world.ask("b")
    world.give("a")
    world.advance(5.0)
    assert world.conditions() == {"Blocked"}


def kill(world: World, failure: tuple[AgentErrorKind, str] | None = None) -> None:
    """An operator asks for it."""
    world.kill_failure = failure
    answer = world.evict(EvictAction.KILL, job="a")
    assert answer.evicted is not None


def test_kill_that_the_agent_cannot_do_is_shown_until_the_job_is_off_the_device(world: World) -> None:
    unsaveable(world)
    kill(world, (AgentErrorKind.UNSUPPORTED, "this agent cannot kill"))
    [event] = [event for event in world.published if event.kind == "kill_failed"]
    assert (event.job, event.node, event.detail) == ("a", "n1", "this agent cannot kill")
    assert world.conditions() == {"Blocked", "KillFailed"}
    [condition] = [one for one in world.view().conditions if one.kind == "KillFailed"]
    assert condition.jobs == ("a",)
    assert "this agent cannot kill" in condition.reason
    assert "by hand" in condition.advice
    world.disappear("a")
    assert world.conditions() == set()


def test_kill_that_fails_again_and_again_is_told_once(world: World) -> None:
    unsaveable(world)
    for _ in range(3):
        kill(world, (AgentErrorKind.UNANSWERED, "no answer"))
    assert told(world, "kill_failed") == ["kill_failed"]


def test_kill_that_succeeds_after_one_that_failed_leaves_nothing(world: World) -> None:
    unsaveable(world)
    kill(world, (AgentErrorKind.UNANSWERED, "no answer"))
    kill(world)
    assert world.conditions() == set()
    assert world.state("a") == "absent"


def test_kill_of_what_is_not_there_is_no_failure(world: World) -> None:
    unsaveable(world)
    kill(world, (AgentErrorKind.GONE, "no such context"))
    assert told(world, "kill_failed") == []


def test_policy_whose_kill_fails_is_shown_too() -> None:
    world = World(on_unsaveable=OnUnsaveable.KILL)
    world.settle()
    world.kill_failure = (AgentErrorKind.REFUSED, "not permitted")
    unsaveable(world)
    world.advance(60.0)
    assert len(world.kills) > 1
    assert told(world, "kill_failed") == ["kill_failed"]
    assert world.conditions() == {"Blocked", "KillFailed"}
    world.kill_failure = None
    world.advance(20.0)
    assert world.conditions() == set()
