"""Agents, drivers and processes that fail (rows 6, 9, 11 to 16, 38, 40, 44 and 49)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import (
    AgentErrorKind,
    CallId,
    ContextState,
    Epoch,
    EvictAction,
    GroupId,
    JobId,
    NodeId,
    OnUnsaveable,
    OperationId,
    RefusalCode,
    Token,
)
from world import World, with_settings


def handing_over(world: World) -> CallId:
    """a holds with a context, b was there before and is saved and waits again; return b's call."""
    world.settle()
    world.ask("b")
    world.appear("b")
    world.ask("a")
    world.give("b")
    world.appear("a")
    return world.ask("b")


def fate(world: World, kind: str, job: str, *fates: str) -> None:
    world.agent().fates[(kind, JobId(job))].extend(fates)


def test_snapshot_that_fails_twice_is_tried_a_third_time() -> None:
    world = World()
    call = handing_over(world)
    fate(world, "snapshot", "a", "rolled back", "rolled back")
    world.give("a")
    assert world.lease(call) is None
    assert world.state("a") == "running"
    world.advance(5.0)
    assert world.lease(call) is not None


def test_holder_that_can_not_be_saved_blocks_the_group_by_name() -> None:
    world = World()
    call = handing_over(world)
    fate(world, "snapshot", "a", *["rolled back"] * 3)
    world.give("a")
    world.advance(5.0)
    assert world.lease(call) is None
    assert "Blocked" in world.conditions()
    world.disappear("a")
    assert world.lease(call) is not None
    assert "Blocked" not in world.conditions()


def test_holder_that_can_not_be_saved_stays_locked_beside_a_job_that_fits() -> None:
    world = World()
    world.settle()
    world.ask("b")
    world.appear("b", size=20)
    world.ask("a")
    world.give("b")
    world.appear("a", size=60)
    call = world.ask("b")
    fate(world, "snapshot", "a", *["rolled back"] * 3)
    world.give("a")
    world.advance(5.0)
    assert world.lease(call) is not None
    assert (world.state("a"), world.state("b")) == ("locked", "running")
    assert world.view().resident_jobs == ("a", "b")


def test_holder_that_can_not_even_be_locked_blocks_a_job_that_would_fit_beside_it() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    call = world.ask("b")
    context = world.context("a")
    assert context is not None
    context.is_unsaveable = context.is_unlockable = True
    world.give("a")
    world.advance(10.0)
    assert world.lease(call) is None
    [blocked] = [condition for condition in world.view().conditions if condition.kind == "Blocked"]
    assert "locked" in blocked.reason
    assert world.state("a") == "running"
    context.is_unlockable = False
    world.advance(20.0)
    assert world.lease(call) is not None
    assert world.state("a") == "locked"


def test_holder_that_can_not_be_saved_is_killed_where_the_policy_says_so() -> None:
    world = World(on_unsaveable=OnUnsaveable.KILL)
    call = handing_over(world)
    context = world.context("a")
    assert context is not None
    context.is_unsaveable = True
    world.give("a")
    world.advance(25.0)
    assert world.kills == []
    world.advance(20.0)
    assert {kill.job for kill in world.kills} == {"a"}
    assert world.lease(call) is not None


def test_indeterminate_snapshot_closes_the_accelerators_until_the_driver_says() -> None:
    world = World()
    call = handing_over(world)
    fate(world, "snapshot", "a", "indeterminate saved")
    world.give("a")
    world.advance(300.0)
    assert world.lease(call) is None
    assert "Indeterminate" in world.conditions()
    context = world.context("a")
    assert context is not None
    world.agent().resolve(context, ContextState.SAVED)
    world.settle()
    assert world.lease(call) is not None
    assert sum(work.kind == "snapshot" for work in world.agent().works.values()) == 2


def test_context_that_ends_in_the_middle_of_its_snapshot_is_no_fault() -> None:
    world = World()
    call = handing_over(world)
    fate(world, "snapshot", "a", "gone")
    world.give("a")
    assert world.lease(call) is not None
    assert "faulted" not in world.kinds()


def test_restore_that_overtakes_a_lost_snapshot_is_not_sent_without_end() -> None:
    world = World()
    call = handing_over(world)
    world.send_give("a")
    while channels := [channel for channel in world.deliverable() if "snapshot" not in channel[-1]]:
        world.deliver(channels[0])
        assert len(world.trace) < 200
    [(_, node, operation)] = world.deliverable()
    world.channels.clear()
    world.handle(ev.AgentCallFailed(NodeId(node), OperationId(operation), AgentErrorKind.UNANSWERED, "lost"))
    world.advance(5.0)
    assert world.lease(call) is not None


def test_end_of_an_old_context_does_not_hide_the_new_one() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", size=40)
    waiting = world.ask("b")
    world.agent().is_stalled = True
    world.give("a")
    world.disconnect()
    world.agent().disappear(JobId("a"), GroupId("g"))
    world.agent().appear(JobId("a"), GroupId("g"), [4242], size=40)
    world.agent().is_stalled = False
    world.reconnect()
    world.advance(5.0)
    assert world.state("a") == "saved"
    assert world.lease(waiting) is not None


def test_restore_without_room_blocks_the_group_and_names_the_strangers() -> None:
    world = World()
    call = handing_over(world)
    agent = world.agent()
    view = agent.accelerator_view(GroupId("g"))
    agent.accelerator_view = lambda group: replace(view, used_bytes=70 + agent.used(group), unmanaged_pids=(77,))  # type: ignore[method-assign]
    fate(world, "restore", "b", *["rolled back"] * 20)
    world.give("a")
    world.advance(10.0)
    assert world.lease(call) is None
    [blocked] = [condition for condition in world.view().conditions if condition.kind == "Blocked"]
    assert "77" in blocked.reason
    agent.accelerator_view = lambda group: replace(view, used_bytes=agent.used(group))  # type: ignore[method-assign]
    agent.fates.clear()
    agent.push(ev.AcceleratorChanged(agent.node, agent.accelerator_view(GroupId("g"))))
    world.settle()
    world.advance(5.0)
    assert world.lease(call) is not None


def test_job_that_can_not_be_brought_back_is_faulted_and_others_go_on() -> None:
    world = World()
    call = handing_over(world)
    other = world.ask("c")
    fate(world, "restore", "b", *["rolled back"] * 3)
    world.give("a")
    world.advance(5.0)
    assert world.refusal(call).code is RefusalCode.FAILED_PRECONDITION
    assert world.lease(other) is not None
    assert "Faulted" in world.conditions()
    world.evict(EvictAction.CLEAR_FAULT, job="b")
    world.give("c")
    assert world.lease(world.ask("b")) is not None


def test_job_in_the_drivers_failed_state_is_faulted_and_others_go_on() -> None:
    world = World()
    call = handing_over(world)
    other = world.ask("c")
    fate(world, "restore", "b", "failed")
    world.give("a")
    world.advance(1.0)
    assert world.refusal(call).code is RefusalCode.FAILED_PRECONDITION
    assert world.lease(other) is not None
    world.disappear("b")
    assert "Faulted" not in world.conditions()


def test_agent_killed_in_the_middle_of_a_snapshot() -> None:
    world = World()
    call = handing_over(world)
    world.send_give("a")
    world.settle(working=False)
    world.agent().crash()
    world.disconnect()
    world.advance(5.0)
    assert world.lease(call) is None
    world.reconnect()
    world.advance(5.0)
    assert world.lease(call) is not None
    assert world.state("a") == "saved"


def test_silent_node_shows_unknown_after_ten_seconds_and_waiters_keep_their_places() -> None:
    world = World()
    call = handing_over(world)
    world.disconnect()
    world.give("a")
    assert world.view().state != "unknown"
    world.advance(11.0)
    assert world.view().state == "unknown"
    assert "Unreachable" in world.conditions()
    assert world.kinds().count("node_unreachable") == 1, "whoever watches is told"
    assert len(world.view().waiters) == 1
    world.reconnect()
    assert world.lease(call) is not None
    assert world.view().state == "locked"


def test_agent_that_takes_calls_and_never_answers_is_asked_again() -> None:
    world = World(groups=("g", "h"))
    call = handing_over(world)
    agent = world.agent()
    agent.is_mute = True
    agent.is_connected = False  # nor does its stream say anything, though it stands
    world.send_give("a")
    world.settle()
    world.advance(160.0)
    assert world.lease(call) is None
    assert world.view().state == "unknown"
    assert "node_unreachable" in world.kinds()
    assert world.lease(world.ask("x", "h")) is not None, "another group is served"
    world.disconnect()
    assert world.view().state == "unknown", "a stream that breaks at last does not start the silence anew"
    agent.is_mute = False
    world.reconnect()
    world.advance(150.0)
    assert world.lease(call) is not None


def test_saved_job_is_not_granted_after_its_agent_restarts() -> None:
    world = World()
    call = handing_over(world)
    world.agent().crash()
    world.disconnect()
    world.reconnect()
    assert world.state("b") == "saved"
    world.give("a")
    world.settle()
    assert world.lease(call) is not None
    assert world.state("b") == "running"


def test_saved_job_that_an_agent_without_memory_shows_as_idle_is_not_granted() -> None:
    world = World()
    call = handing_over(world)
    context = world.context("b")
    assert context is not None
    world.agent().crash()
    context.state = ContextState.IDLE
    world.disconnect()
    world.reconnect()
    world.give("a")
    world.advance(30.0)
    assert world.lease(call) is None
    assert "Unexplained" in world.conditions()
    context.pids = frozenset({4242})
    world.agent().push_context(context)
    world.settle()
    assert world.lease(call) is not None


def test_call_that_was_overtaken_by_one_with_a_higher_token_is_made_again() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a", size=40)
    world.agent().appear(JobId("x"), GroupId("g"), size=30)
    while late := [channel for channel in world.deliverable() if "lock" not in channel[-1]]:
        world.deliver(late[0])
    world.agent().fences[GroupId("g")] = (Token(2), Epoch(1))
    group = world.core.groups()[0]
    group.site.use_token(Token(2))  # as a grant on its way would
    group.last_token = Token(2)
    world.settle()
    assert world.stepped_down is None
    assert world.state("x") == "locked"


@pytest.mark.parametrize("has_holder", [True, False])
def test_intruder_is_locked_and_named(has_holder: bool) -> None:
    world = World()
    world.settle()
    if has_holder:
        world.ask("a")
        world.appear("a", size=40)
    world.appear("x", size=30)
    assert world.state("x") == "locked"
    assert "Intruder" in world.conditions()
    if has_holder:
        assert world.state("a") == "running"


def test_intruder_is_saved_when_room_is_needed() -> None:
    world = World()
    call = handing_over(world)
    world.appear("x", size=40)
    world.give("a")
    assert world.lease(call) is not None
    assert (world.state("x"), world.state("b")) == ("saved", "running")


def test_intruder_that_fits_beside_stays_locked() -> None:
    world = World()
    call = handing_over(world)
    world.appear("x", size=20)
    world.give("a")
    assert world.lease(call) is not None
    assert (world.state("x"), world.state("b")) == ("locked", "running")


def test_intruder_runs_when_it_is_granted() -> None:
    world = World()
    world.settle()
    world.appear("x")
    assert world.state("x") == "locked"
    assert world.lease(world.ask("x")) is not None
    assert world.state("x") == "running"
    assert "Intruder" not in world.conditions()


def test_forgotten_node_faults_the_jobs_that_were_there_and_the_group_goes_on() -> None:
    world = World(nodes=2)
    call = handing_over(world)
    other = world.ask("c")
    world.agent("n2").is_up = False
    world.disconnect("n2")
    world.give("a")
    world.advance(60.0)
    assert world.lease(other) is None
    assert world.evict(EvictAction.FORGET_NODE, node="n2").evicted is not None
    world.advance(10.0)
    assert world.refusal(call).code is RefusalCode.FAILED_PRECONDITION
    assert "n2" in world.refusal(call).text
    assert world.lease(other) is not None


def test_group_that_shares_an_accelerator_with_an_earlier_one_is_refused() -> None:
    world = World(groups=("g", "h"))
    world.settle()
    agent = world.agent()
    view = agent.accelerator_view(GroupId("g"))
    world.handle(ev.AcceleratorChanged(NodeId("n1"), replace(view, groups=(GroupId("g"), GroupId("h")))))
    assert world.refusal(world.ask("a", "h")).code is RefusalCode.FAILED_PRECONDITION
    assert "Overlap" in world.conditions("h")
    assert world.lease(world.ask("a", "g")) is not None


def test_evicted_job_is_saved_though_nobody_waits() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.appear("a")
    assert world.evict(EvictAction.END_LEASE, job="a").evicted is not None
    assert world.state("a") == "saved"
    assert world.view().lease is None
    assert world.lease(world.ask("a")) is not None
    assert world.state("a") == "running"


def test_dropped_waiter_is_told_so() -> None:
    world = World()
    world.settle()
    world.ask("a")
    call = world.ask("b", request="r")
    assert world.evict(EvictAction.DROP_WAITER, request="r", reason="not today").evicted is not None
    assert world.refusal(call).code is RefusalCode.ABORTED
    assert "not today" in world.refusal(call).text


def test_small_margin_decides_whether_a_job_fits_beside() -> None:
    world = World(settings=with_settings(restore_margin_bytes=25))
    world.settle()
    world.ask("b")
    world.appear("b", size=20)
    world.ask("a")
    world.give("b")
    world.appear("a", size=60)
    call = world.ask("b")
    fate(world, "snapshot", "a", *["rolled back"] * 3)
    world.give("a")
    world.advance(5.0)
    assert world.lease(call) is None
    assert "Blocked" in world.conditions()


def test_held_share_counts_leases_and_not_switches() -> None:
    world = World()
    world.settle()
    world.ask("a")
    world.advance(30.0)
    world.give("a")
    world.advance(10.0)
    assert world.view().held_share == pytest.approx(0.75)
    assert world.view().handoffs_total == 0
    world.ask("b")
    assert world.view().handoffs_total == 1
