"""One job, several processes, one lease (row 41): who is told, and what hands it on."""

from __future__ import annotations

import pytest

from orchestrator.core import events as ev
from orchestrator.core.types import EvictAction, JobId, Lease, RefusalCode, SessionId
from world import World, with_settings


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    for session, job, pid in (("s1", "a", 7), ("s2", "a", 8), ("s3", "a", 9), ("t", "b", 17)):
        world.open(session, job, ("n1", pid))
    return world


def held(world: World) -> Lease:
    lease = world.view().lease
    assert lease is not None
    return lease


def take(world: World, session: str | None, request: str | None = None) -> Lease:
    lease = world.lease(world.ask("a", session=session, request=request))
    assert lease is not None
    return lease


def lose(world: World, session: str) -> None:
    """The session's client closes it."""
    stream = next(a.stream for a in reversed(world.opened) if a.session == session)
    world.handle(ev.SessionClosed(stream))
    world.settle()


def told(world: World) -> list[tuple[str, str]]:
    """Whom LeaseShared went to, and the owner that it named, since the last time."""
    notices = [(str(notice.session), str(notice.lease.session)) for notice in world.shared]
    world.shared.clear()
    return notices


def test_second_process_gets_the_same_lease_at_once(world: World) -> None:
    first, second = take(world, "s1"), take(world, "s2")
    assert (second.token, second.session) == (first.token, "s1")
    assert second.holders == ("s1", "s2")


def test_both_are_told(world: World) -> None:
    take(world, "s1")
    take(world, "s2")
    [to_owner, to_newcomer] = world.shared
    assert to_owner.session == "s1"
    assert "session 's2' (process 8 on 'n1')" in to_owner.other
    assert to_newcomer.session == "s2"
    assert "session 's1' (process 7 on 'n1')" in to_newcomer.other
    assert {notice.lease.holders for notice in world.shared} == {("s1", "s2")}


def test_a_process_that_asks_again_is_not_told_again(world: World) -> None:
    take(world, "s1")
    take(world, "s2")
    told(world)
    take(world, "s2")
    take(world, "s1")
    assert told(world) == []


def test_yield_of_the_one_that_came_later_hands_nothing_on(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    waiting = world.ask("b")
    answer = world.give("a", token=token, session="s2").yielded
    assert answer is not None
    assert (answer.pending_waiters, answer.snapshot_deferred) == (1, True)
    assert world.lease(waiting) is None
    assert held(world).holders == ("s1",)


def test_yield_of_the_one_that_came_later_is_told_to_the_owner(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    told(world)
    world.give("a", token=token, session="s2")
    assert told(world) == [("s1", "s1")]


def test_yield_of_the_owner_hands_on_and_the_other_is_told_that_the_lease_is_lost(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    waiting = world.ask("b")
    assert world.give("a", token=token, session="s1").yielded is not None
    assert world.lease(waiting) is not None
    [notice] = world.lost
    assert (notice.session, notice.lease.token) == ("s2", token)
    assert "session 's1'" in notice.reason


def test_process_that_still_computes_when_the_owner_yields_is_off_the_device_before_the_next_job_runs(
    world: World,
) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    world.appear("a", pid=8)
    waiting = world.ask("b")
    world.agent().is_stalled = True
    world.give("a", token=token, session="s1")
    assert world.lease(waiting) is None
    world.agent().is_stalled = False
    world.settle()
    assert world.state("a") == "saved"
    assert world.lease(waiting) is not None


def test_repeated_yield_of_a_share_changes_nothing(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    world.give("a", token=token, session="s2")
    assert world.give("a", token=token, session="s2").yielded is not None
    assert held(world).holders == ("s1",)


def test_yield_without_token_of_a_session_that_holds_nothing_is_refused(world: World) -> None:
    take(world, "s1")
    refusal = world.give("a", session="s2").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED
    assert "session 's1'" in refusal.text
    assert held(world).holders == ("s1",)


def test_stale_token_of_one_that_shared_an_earlier_lease_does_not_touch_this_one(world: World) -> None:
    old = take(world, "s1").token
    take(world, "s2")
    world.give("a", token=old, session="s1")
    new = take(world, "s2")
    take(world, "s1")
    assert world.give("a", token=old, session="s1").yielded is not None
    assert world.give("a", token=old, session="s2").yielded is not None
    assert held(world).token == new.token
    assert held(world).holders == ("s2", "s1")


def test_one_that_gave_its_share_back_can_come_again(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    world.give("a", token=token, session="s2")
    told(world)
    assert take(world, "s2").holders == ("s1", "s2")
    assert sorted(told(world)) == [("s1", "s1"), ("s2", "s1")]


def test_retry_of_a_request_whose_share_was_given_back_is_aborted(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2", request="r2")
    world.give("a", token=token, session="s2")
    assert world.refusal(world.ask("a", request="r2", session="s2")).code is RefusalCode.ABORTED
    world.crash()
    world.start()
    world.settle()
    world.open("s2", "a")
    assert world.refusal(world.ask("a", request="r2", session="s2")).code is RefusalCode.ABORTED
    world.open("s1", "a")
    world.give("a", token=token, session="s1")
    assert world.refusal(world.ask("a", request="r2", session="s2")).code is RefusalCode.ABORTED


def test_lease_outlives_its_owner_while_another_session_holds_it(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    take(world, "s3")
    waiting = world.ask("b")
    told(world)
    lose(world, "s1")
    assert world.lease(waiting) is None
    assert held(world).holders == ("s2", "s3")
    assert sorted(told(world)) == [("s2", "s2"), ("s3", "s2")]
    assert world.give("a", token=token, session="s3").yielded is not None
    assert world.lease(waiting) is None
    assert world.give("a", token=token, session="s2").yielded is not None
    assert world.lease(waiting) is not None


def test_lease_ends_with_the_last_session_that_holds_it(world: World) -> None:
    take(world, "s1")
    take(world, "s2")
    waiting = world.ask("b")
    lose(world, "s2")
    assert held(world).holders == ("s1",)
    lose(world, "s1")
    assert world.lease(waiting) is not None


def test_share_of_a_session_that_ended_is_told_to_the_owner(world: World) -> None:
    take(world, "s1")
    take(world, "s2")
    told(world)
    lose(world, "s2")
    assert told(world) == [("s1", "s1")]


def test_evicted_lease_is_lost_to_all_that_hold_it(world: World) -> None:
    take(world, "s1")
    take(world, "s2")
    world.evict(EvictAction.END_LEASE, job="a", reason="maintenance")
    assert [(notice.session, notice.reason) for notice in world.lost] == [("s1", "maintenance"), ("s2", "maintenance")]


def test_processes_that_wait_together_are_granted_one_lease(world: World) -> None:
    world.ask("b", session="t")
    first, second = world.ask("a", session="s1"), world.ask("a", session="s2")
    third = world.ask("c")
    world.give("b", session="t")
    one, two = world.lease(first), world.lease(second)
    assert one is not None
    assert two is not None
    assert (one.token, one.holders) == (two.token, ("s1", "s2"))
    assert sorted(told(world)) == [("s1", "s1"), ("s2", "s1")]
    assert world.lease(third) is None


def test_who_holds_a_lease_survives_a_restart(world: World) -> None:
    token = take(world, "s1").token
    take(world, "s2")
    world.crash()
    world.start()
    world.settle()
    assert held(world).holders == ("s1", "s2")
    world.open("s2", "a", ("n1", 8))
    assert [lease.token for lease in world.opened[-1].leases] == [token]
    waiting = world.ask("b")
    world.advance(31.0)  # s1 does not come back
    assert held(world).holders == ("s2",)
    assert world.lease(waiting) is None
    world.give("a", token=token, session="s2")
    assert world.lease(waiting) is not None


def test_share_is_durable_before_anybody_is_told(world: World) -> None:
    take(world, "s1")
    world.store.fates.append("failed")
    asking = world.ask("a", session="s2")
    assert world.lease(asking) is None
    assert told(world) == []
    world.advance(1.0)
    assert world.lease(asking) is not None
    record = world.store.records[held(world).group]
    assert record.lease is not None
    assert record.lease.holders == ("s1", "s2")


def test_share_whose_answer_was_never_sent_is_undone(world: World) -> None:
    take(world, "s1")
    world.store.fates.append("failed")
    world.cancel(world.ask("a", session="s2", request="r2"))
    world.advance(1.0)
    assert held(world).holders == ("s1",)
    assert world.shared == []
    assert take(world, "s2", request="r2").holders == ("s1", "s2")


def test_share_whose_answer_was_lost_is_undone_and_the_owner_is_told(world: World) -> None:
    take(world, "s1")
    asking = world.ask("a", session="s2", request="r2")
    told(world)
    world.handle(ev.CallCancelled(asking))
    world.settle()
    assert held(world).holders == ("s1",)
    assert told(world) == [("s1", "s1")]
    assert take(world, "s2", request="r2").holders == ("s1", "s2")


def test_owner_that_never_got_its_answer_leaves_the_lease_to_the_other(world: World) -> None:
    first = world.ask("a", session="s1")
    take(world, "s2")
    world.handle(ev.CallCancelled(first))
    world.settle()
    assert held(world).holders == ("s2",)


def test_owner_that_stops_waiting_before_its_answer_leaves_the_lease_to_the_other(world: World) -> None:
    world.ask("b", session="t")
    first, second = world.ask("a", session="s1"), world.ask("a", session="s2")
    world.store.fates.append("failed")
    world.give("b", session="t")
    assert world.view().lease is None
    world.cancel(first)
    world.advance(1.0)
    lease = world.lease(second)
    assert lease is not None
    assert held(world).holders == ("s2",)


def test_waiter_of_the_job_that_was_between_two_slices_joins_when_it_is_back(world: World) -> None:
    world.ask("b", session="t")
    world.ask("a", session="s1", request="r1", wait_s=1.0)
    second = world.ask("a", session="s2")
    world.advance(3.5)
    world.give("b", session="t")
    lease = world.lease(second)
    assert lease is not None
    assert lease.holders == ("s2",)
    assert take(world, "s1", request="r1").holders == ("s2", "s1")


def test_job_is_not_kept_waiting_by_one_process_between_slices_when_another_one_waits(world: World) -> None:
    world.ask("b", session="t")
    world.ask("a", session="s1", request="r1", wait_s=1.0)
    world.advance(1.5)
    second = world.ask("a", session="s2")
    world.give("b", session="t")
    lease = world.lease(second)
    assert lease is not None
    assert lease.session == "s2"


def test_request_that_comes_back_to_a_lease_that_its_session_has_by_now_leaves_the_queue(world: World) -> None:
    world.ask("b", session="t")
    world.ask("a", session="s1", request="r1", wait_s=1.0)
    world.advance(3.5)
    world.ask("a", session="s1", request="r2")
    world.give("b", session="t")
    assert held(world).holders == ("s1",)
    assert [waiter.request for waiter in world.view().waiters] == ["r1"]
    assert take(world, "s1", request="r1").holders == ("s1",)
    assert world.view().waiters == ()
    assert world.store.waiters == {}


# ---------------------------------------------------------------- clients without sessions


def test_without_sessions_the_job_alone_decides(world: World) -> None:
    first, second = take(world, None), take(world, None)
    assert first == second
    assert first.holders == (None,)
    waiting = world.ask("b")
    assert world.give("a").yielded is not None
    assert world.lease(waiting) is not None


def test_client_without_session_gives_back_in_the_jobs_name(world: World) -> None:
    lease = take(world, "s1")
    assert take(world, None).holders == ("s1", None)
    [to_owner] = world.shared
    assert to_owner.session == "s1"
    assert "without session" in to_owner.other
    assert world.give("a", token=lease.token).yielded is not None
    assert world.view().lease is None
    assert [notice.session for notice in world.lost] == ["s1"]


def test_lease_goes_on_for_a_client_without_session_when_its_owner_ends(world: World) -> None:
    take(world, "s1")
    take(world, None)
    world.appear("a", pid=70)
    lose(world, "s1")
    assert held(world).holders == (None,)
    waiting = world.ask("b")
    world.disappear("a")
    world.advance(31.0)
    assert world.lease(waiting) is not None


def test_lease_of_a_client_without_session_passes_on_when_its_processes_are_gone() -> None:
    world = World(settings=with_settings(start_grace_s=50.0))
    world.settle()
    world.open("s1", "a")
    world.ask("a")
    world.ask("a", session="s1")
    assert held(world).holders == (None, "s1")
    world.advance(51.0)
    assert held(world).holders == ("s1",)
    assert "owns it now" in world.shared[-1].other


def test_session_of_another_job_has_no_part_in_it(world: World) -> None:
    lease = take(world, "s1")
    refusal = world.give("b", token=lease.token, session="t").refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PERMISSION_DENIED
    assert world.refusal(world.ask("a", session="t")).code is RefusalCode.PERMISSION_DENIED
    assert held(world).holders == ("s1",)


def test_a_thousand_processes_of_a_job_cost_the_owner_one_notice_per_grant(world: World) -> None:
    world.ask("b", session="t")
    for number in range(1000):
        world.open(f"x{number}", "a")
        world.send_ask("a", session=f"x{number}")
    world.give("b", session="t")
    assert len(held(world).holders) == 1000
    assert len([notice for notice in world.shared if notice.session == SessionId("x0")]) == 1
    assert len(world.shared) == 1000
    assert world.lost == []
    assert held(world).job == JobId("a")
