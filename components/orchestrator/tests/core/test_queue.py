"""Who waits, who leaves, and what a repeated request gets (rows 2, 3, 26, 41 and 47)."""

from __future__ import annotations

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import GroupId, JobId, RefusalCode, RequestId
from world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    return world


def test_waiters_are_served_in_the_order_in_which_they_came(world: World) -> None:
    world.ask("a")
    calls = {job: world.ask(job) for job in ("b", "c", "d")}
    served = []
    for job in ("a", "b", "c"):
        world.give(job)
        served.append([name for name, call in calls.items() if world.lease(call) is not None])
    assert served == [["b"], ["b", "c"], ["b", "c", "d"]]


def test_hints_do_not_change_the_order(world: World) -> None:
    world.ask("a")
    first = world.ask("b")
    call = world.call()
    world.handle(ev.AcquireRequested(call=call, group=GroupId("g"), job=JobId("c"), priority=9, expected_hold_s=0.1))
    world.give("a")
    assert world.lease(first) is not None
    assert world.lease(call) is None


def test_unknown_group_is_not_found(world: World) -> None:
    assert world.refusal(world.ask("a", "nowhere")).code is RefusalCode.NOT_FOUND


def test_cancelled_waiter_leaves_the_queue_at_once_and_is_never_granted(world: World) -> None:
    world.ask("a")
    gone, waiting = world.ask("b"), world.ask("c")
    world.cancel(gone)
    assert len(world.view().waiters) == 1
    world.give("a")
    assert world.lease(gone) is None
    assert world.lease(waiting) is not None


def test_waiter_that_leaves_in_the_middle_of_its_switch_is_not_granted(world: World) -> None:
    world.ask("a")
    world.appear("a")
    gone, waiting = world.ask("b"), world.ask("c")
    world.send_give("a")
    world.settle(working=False)
    assert world.view().state == "switching"
    world.cancel(gone)
    world.settle()
    assert world.lease(gone) is None
    assert world.lease(waiting) is not None


def test_retry_of_a_waiting_request_does_not_queue_twice(world: World) -> None:
    world.ask("a")
    first, again = world.ask("b", request="r"), world.ask("b", request="r")
    assert len(world.view().waiters) == 1
    world.give("a")
    lease = world.lease(first)
    assert lease is not None
    assert world.lease(again) == lease


def test_retry_after_a_lost_reply_gets_the_same_lease_again(world: World) -> None:
    lease = world.lease(world.ask("a", request="r"))
    again = world.lease(world.ask("a", request="r"))
    assert lease is not None
    assert again is not None
    assert again.token == lease.token


def test_retry_after_the_lease_was_given_back_is_aborted(world: World) -> None:
    world.ask("a", request="r")
    world.give("a")
    refusal = world.refusal(world.ask("a", request="r"))
    assert refusal.code is RefusalCode.ABORTED
    assert "new request_id" in refusal.text


def test_old_request_is_remembered_for_an_hour(world: World) -> None:
    world.ask("a", request="r")
    world.give("a")
    world.advance(3500.0)
    assert world.refusal(world.ask("a", request="r")).code is RefusalCode.ABORTED
    world.advance(200.0)
    world.ask("a", request="s")
    world.give("a")
    assert world.lease(world.ask("a", request="r")) is not None


def test_grant_whose_reply_could_not_be_written_is_undone(world: World) -> None:
    call = world.ask("a", request="r")
    waiting = world.ask("b")
    world.handle(ev.CallCancelled(call))
    world.settle()
    assert world.lease(waiting) is not None
    world.give("b")
    assert world.lease(world.ask("a", request="r")) is not None, "a request that never got its lease is not old"


def test_waiter_between_two_wait_slices_keeps_its_place(world: World) -> None:
    world.ask("a")
    first = world.ask("b", request="r", wait_s=1.0)
    other = world.ask("c")
    world.advance(1.5)
    assert world.answers[first].queued
    again = world.ask("b", request="r", wait_s=10.0)
    world.give("a")
    assert world.lease(again) is not None
    assert world.lease(other) is None


def test_group_waits_a_moment_for_a_waiter_between_two_slices(world: World) -> None:
    world.ask("a")
    world.ask("b", request="r", wait_s=1.0)
    other = world.ask("c")
    world.advance(1.0)
    world.give("a")
    assert world.lease(other) is None
    again = world.ask("b", request="r", wait_s=1.0)
    assert world.lease(again) is not None


def test_waiter_that_does_not_come_back_is_passed_over(world: World) -> None:
    world.ask("a")
    world.ask("b", request="r", wait_s=1.0)
    other = world.ask("c")
    world.advance(1.0)
    world.give("a")
    world.advance(2.5)
    assert world.lease(other) is not None


def test_detached_waiter_without_session_is_dropped_after_its_grace(world: World) -> None:
    world.ask("a")
    world.ask("b", request="r", wait_s=1.0)
    world.advance(5.0)
    assert len(world.view().waiters) == 1
    world.advance(7.0)
    assert world.view().waiters == ()


def test_detached_waiter_with_a_session_stays_as_long_as_the_session(world: World) -> None:
    world.open("s", "b")
    world.ask("a")
    world.ask("b", request="r", session="s", wait_s=1.0)
    world.advance(100.0)
    assert [waiter.request for waiter in world.view().waiters] == [RequestId("r")]


def test_two_processes_of_the_holder_share_one_lease(world: World) -> None:
    first, second = world.lease(world.ask("a")), world.lease(world.ask("a"))
    assert first is not None
    assert second is not None
    assert first.token == second.token


def test_request_id_of_another_job_is_refused(world: World) -> None:
    world.ask("a")
    world.ask("b", request="r")
    assert world.refusal(world.ask("c", request="r")).code is RefusalCode.INVALID_ARGUMENT


def test_thousand_waiters_leave_and_are_served_in_order(world: World) -> None:
    world.ask("j0")
    calls = [world.send_ask(f"j{number}") for number in range(1, 1001)]
    for call in calls[::2]:
        world.handle(ev.CallCancelled(call))
    world.give("j0")
    assert world.lease(calls[1]) is not None
    assert len(world.view().waiters) == 499
