"""When a client counts as alive, and what ends with it (rows 1 and 5)."""

from __future__ import annotations

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import CallId, JobId, NodeId, ProcessRef, RefusalCode, SessionId
from world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    return world


def holder(world: World) -> CallId:
    """a holds with a session and one process that the agent sees; return the session's stream."""
    stream = world.open("s", "a", ("n1", 7))
    assert world.lease(world.ask("a", session="s")) is not None
    world.appear("a", pid=7)
    return stream


def holder_in_a_pod(world: World, host: str) -> CallId:
    """The same where the client names its process as it is known in its pod, on what it takes for its node."""
    stream = world.open("s", "a", (host, 7))
    assert world.lease(world.ask("a", session="s")) is not None
    world.appear("a", pid=4711)
    context = world.context("a")
    assert context is not None
    context.in_pods = frozenset({ProcessRef(NodeId("pod-a"), 7)})
    world.agent().push_context(context)
    world.settle()
    return stream


HOLDERS = {
    "on its node": holder,
    "in a pod": lambda world: holder_in_a_pod(world, "pod-a"),
    "in a pod that knows its node": lambda world: holder_in_a_pod(world, "n1"),
}


@pytest.fixture(params=HOLDERS.values(), ids=HOLDERS)
def held(request: pytest.FixtureRequest, world: World) -> CallId:
    """The stream of such a holder, wherever its process runs."""
    made: CallId = request.param(world)
    return made


def lose(world: World, stream: CallId) -> None:
    world.handle(ev.SessionStreamLost(stream))
    world.settle()


def test_lease_ends_at_once_when_stream_and_processes_are_gone(world: World, held: CallId) -> None:
    waiting = world.ask("b")
    lose(world, held)
    assert world.lease(waiting) is None
    world.disappear("a")
    assert world.lease(waiting) is not None


def test_lease_ends_at_once_in_the_other_order_too(world: World, held: CallId) -> None:
    waiting = world.ask("b")
    world.disappear("a")
    assert world.lease(waiting) is None
    lose(world, held)
    assert world.lease(waiting) is not None


def test_client_that_no_agent_knows_has_a_moment_to_reconnect_when_its_workers_have_ended(world: World) -> None:
    stream = world.open("s", "a", ("n1", 6), ("n1", 7))
    world.ask("a", session="s")
    world.appear("a", pid=7)
    waiting = world.ask("b")
    world.disappear("a")
    lose(world, stream)
    world.advance(4.0)
    assert world.lease(waiting) is None
    world.advance(2.0)
    assert world.lease(waiting) is not None


def test_lease_whose_stream_alone_is_lost_ends_after_the_time_to_live(world: World) -> None:
    stream = world.open("s", "a")
    world.ask("a", session="s")
    waiting = world.ask("b")
    lose(world, stream)
    world.advance(29.0)
    assert world.lease(waiting) is None
    world.advance(2.0)
    assert world.lease(waiting) is not None


def test_session_is_alive_as_long_as_an_agent_attests_a_process(world: World, held: CallId) -> None:
    waiting = world.ask("b")
    lose(world, held)
    world.advance(300.0)
    assert world.lease(waiting) is None
    assert "Starved" in world.conditions()


def test_attestation_ends_with_the_agents_connection(world: World, held: CallId) -> None:
    waiting = world.ask("b")
    lose(world, held)
    world.disconnect()
    world.advance(31.0)
    assert world.view().lease is None
    world.reconnect()
    world.advance(1.0)
    assert world.lease(waiting) is not None


def test_process_of_another_pod_attests_nobody(world: World) -> None:
    """Its pid and its time of birth may be the same."""
    stream = holder_in_a_pod(world, "pod-b")
    waiting = world.ask("b")
    lose(world, stream)
    world.advance(29.0)
    assert world.lease(waiting) is None
    world.advance(2.0)
    assert world.lease(waiting) is not None


def test_missed_renewals_alone_only_show_a_condition(world: World) -> None:
    world.open("s", "a")
    world.ask("a", session="s")
    world.advance(300.0)
    assert world.view().lease is not None
    assert "Starved" in world.conditions()


def test_processes_of_an_expired_holder_are_saved_before_the_next_job_runs(world: World) -> None:
    stream = holder(world)
    waiting = world.ask("b")
    lose(world, stream)
    context = world.context("a")
    assert context is not None
    context.pids = frozenset({8})
    world.agent().push_context(context)
    world.settle()
    assert world.lease(waiting) is not None
    assert world.state("a") == "saved"


def test_loss_of_a_replaced_stream_means_nothing(world: World) -> None:
    old = world.open("s", "a")
    world.ask("a", session="s")
    world.open("s", "a")
    lose(world, old)
    world.advance(100.0)
    assert world.view().lease is not None


def test_client_that_closes_its_session_gives_its_lease_back(world: World) -> None:
    stream = world.open("s", "a")
    world.ask("a", session="s")
    waiting = world.ask("b")
    world.handle(ev.SessionClosed(stream))
    world.settle()
    assert world.lease(waiting) is not None


def test_ended_session_can_neither_be_resumed_nor_used(world: World) -> None:
    stream = world.open("s", "a")
    world.handle(ev.SessionClosed(stream))
    again = world.open("s", "a")
    assert world.refusal(again).code is RefusalCode.FAILED_PRECONDITION
    assert world.refusal(world.ask("a", session="s")).code is RefusalCode.FAILED_PRECONDITION
    refusal = world.give("a", session="s").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.FAILED_PRECONDITION


def test_waiters_of_a_lost_session_leave(world: World) -> None:
    stream = world.open("s", "b")
    world.ask("a")
    waiting = world.ask("b", session="s")
    lose(world, stream)
    world.advance(31.0)
    assert world.refusal(waiting).code is RefusalCode.FAILED_PRECONDITION
    assert world.view().waiters == ()


def test_session_of_another_job_is_refused(world: World) -> None:
    world.open("s", "b")
    assert world.refusal(world.ask("a", session="s")).code is RefusalCode.PERMISSION_DENIED


def test_reopened_session_learns_which_leases_it_holds(world: World) -> None:
    stream = world.open("s", "a")
    lease = world.lease(world.ask("a", session="s"))
    lose(world, stream)
    world.open("s", "a")
    assert world.opened[-1].leases == (lease,)


def test_time_to_live_is_the_clients_wish_within_the_limit(world: World) -> None:
    world.open("s", "a", ttl_s=5.0)
    assert world.opened[-1].ttl_s == 5.0
    world.open("t", "a", ttl_s=500.0)
    assert world.opened[-1].ttl_s == 30.0


def test_lease_without_session_ends_some_time_after_its_processes(world: World) -> None:
    world.ask("a")
    world.appear("a")
    waiting = world.ask("b")
    world.disappear("a")
    world.advance(29.0)
    assert world.lease(waiting) is None
    world.advance(2.0)
    assert world.lease(waiting) is not None


def test_lease_without_session_stands_for_the_start_grace_without_processes(world: World) -> None:
    world.ask("a")
    waiting = world.ask("b")
    world.advance(590.0)
    assert world.lease(waiting) is None
    world.advance(20.0)
    assert world.lease(waiting) is not None


def test_lost_lease_is_told_on_the_stream(world: World) -> None:
    world.open("s", "a")
    lease = world.lease(world.ask("a", session="s"))
    world.appear("a")
    context = world.context("a")
    assert context is not None
    context.state = context.state.FAULTED
    world.agent().push_context(context)
    world.settle()
    [notice] = world.lost
    assert (notice.lease, notice.session) == (lease, SessionId("s"))
    assert world.view().lease is None
    assert world.refusal(world.ask(JobId("a"))).code is RefusalCode.FAILED_PRECONDITION
