"""What a client does, step by step, with answers that the test makes up: the same for both faces."""

import itertools
import logging

import pytest

from timeslice._core.calls import Patience, Pause, Status
from timeslice._core.client import CLOSE_S, ClientConfig, ClientCore
from timeslice._core.contact import REMINDER_S, Contact
from timeslice._core.leases import HeldLease, Holding
from timeslice._core.steps import Attempt, AwaitSession, GiveBack, Report, Say, Start, Tell, Wake
from timeslice.orchestrator.exceptions import (
    OrchestratorConnectionError,
    OrchestratorError,
    OrchestratorLeaseLostError,
)
from timeslice.orchestrator.types import AcquireResult, LostLease
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

GROUP = Holding("a", "g")
LEASE = pb2.Lease(group_id="g", job_id="a", fencing_token=3)


def make(*, use_sessions: bool = True, inherited=frozenset()) -> ClientCore:
    config = ClientConfig("unix:/o", "a", "g", 30.0, use_sessions, Patience())
    ids = itertools.count(1)
    return ClientCore(config, lambda: f"id-{next(ids)}", inherited)


class Driver:
    """Plays the shell: `until` carries steps out until one of a kind comes, which it returns."""

    def __init__(self, plan) -> None:
        self.plan, self.now = plan, 0.0
        self.steps: list[object] = []
        self.result: object = None
        self._report: Report | None = None

    def until(self, kind: type | None = None):
        while True:
            try:
                step = next(self.plan) if self._report is None else self.plan.send(self._report)
            except StopIteration as end:
                self.result = end.value
                assert kind is None, f"ended without a {kind}: {self.steps}"
                return self.result
            self.steps.append(step)
            self.answer()
            if kind is not None and isinstance(step, kind):
                return step

    def answer(self, reply=None, failure: Status | None = None, *, now: float | None = None) -> None:
        self.now = self.now if now is None else now
        self._report = Report(self.now, 0.5, reply, failure)


def held() -> ClientCore:
    """A core whose job a holds group g under token 3."""
    core = make()
    driver = Driver(core.acquire(None, None, None, 0.0))
    kept = driver.until(Start).kept
    kept.renewal_goes_out(0.0)
    kept.session.opened(30_000)
    driver.until(Attempt)
    driver.answer(pb2.AcquireResponse(success=True, waited_ms=5, leases=[LEASE]))
    assert driver.until() == AcquireResult(True, 5, False)
    return core


def test_acquire_is_sent_only_when_the_session_is_open():
    core = make()
    driver = Driver(core.acquire(None, None, None, 0.0))
    driver.until(AwaitSession)
    driver.answer(failure=Status("UNAVAILABLE", "connection refused"))
    assert isinstance(driver.until(Pause), Pause)
    driver.until(AwaitSession)
    attempt = driver.until(Attempt)
    assert (attempt.method, attempt.request.session_id, attempt.request.request_id) == ("Acquire", "id-3", "id-1")


def test_first_acquire_waits_for_an_orchestrator_that_restarts_after_it_had_opened_the_session():
    core = make()
    driver = Driver(core.acquire(None, None, None, 0.0))
    kept = driver.until(Start).kept
    kept.renewal_goes_out(0.0)
    kept.handle(pb2.SessionNotice(opened=pb2.SessionOpened(ttl_ms=30_000)), 0.0)
    driver.until(Attempt)
    for now in (5.0, 8.0, 600.0):
        driver.answer(failure=Status("UNAVAILABLE", "connection refused"), now=now)
        driver.until(Pause)
        driver.until(Attempt)
    driver.answer(failure=Status("UNAVAILABLE", "connection refused"), now=606.0)
    with pytest.raises(OrchestratorConnectionError):
        driver.until()


def test_acquire_that_is_broken_off_asks_what_the_session_holds():
    core = make()
    driver = Driver(core.acquire(None, None, None, 0.0))
    kept = driver.until(Start).kept
    kept.renewal_goes_out(0.0)
    kept.session.opened(30_000)
    driver.until(Attempt)
    assert kept.due_in(0.0) == 10.0
    driver.plan.close()
    assert kept.due_in(0.0) == 0.0
    # And a grant that the answer shows is given back, since nobody asks any more.
    kept.renewal_goes_out(0.0)
    effects = kept.handle(pb2.SessionNotice(opened=pb2.SessionOpened(ttl_ms=30_000, leases=[LEASE])), 0.0)
    assert GiveBack(HeldLease(GROUP, 3)) in effects


def test_release_names_token_and_session():
    core = held()
    attempt = Driver(core.release(None, None, None, 1.0)).until(Attempt)
    assert (attempt.method, attempt.request.fencing_token, attempt.request.session_id) == ("Yield", 3, "id-3")
    assert not attempt.outlives_close


@pytest.mark.parametrize(
    ("cause", "failure", "raised"),
    [
        (None, None, None),
        (None, "FAILED_PRECONDITION", OrchestratorLeaseLostError),
        (None, "PERMISSION_DENIED", OrchestratorError),
        (KeyError("k"), None, None),
        (KeyError("k"), "FAILED_PRECONDITION", OrchestratorLeaseLostError),
        (KeyError("k"), "PERMISSION_DENIED", None),
        (KeyboardInterrupt(), None, None),
        (KeyboardInterrupt(), "FAILED_PRECONDITION", None),
        (KeyboardInterrupt(), "PERMISSION_DENIED", None),
    ],
    ids=str,
)
def test_what_a_block_ends_with(cause, failure, raised):
    """What the block raised goes first, except before the news that its device was somebody else's."""
    driver = Driver(held().leave(None, None, cause, 1.0))
    attempt = driver.until(Attempt)
    is_ending = isinstance(cause, KeyboardInterrupt)
    assert attempt.timeout_s == (CLOSE_S if is_ending else Patience().attempt_timeout_s)
    driver.answer(*((pb2.YieldResponse(success=True), None) if failure is None else (None, Status(failure, "no"))))
    if raised is None:
        driver.until()
    else:
        with pytest.raises(raised) as caught:
            driver.until()
        assert type(caught.value) is raised
        if cause is not None:
            assert caught.value.__cause__ is cause
    says = [step.level for step in driver.steps if isinstance(step, Say)]
    assert says == ([logging.ERROR] if isinstance(cause, KeyError) and failure == "PERMISSION_DENIED" else [])


def test_loss_that_a_notice_told_is_not_told_again_at_release():
    core = held()
    [kept] = core._sessions.values()
    told = kept.handle(pb2.SessionNotice(lost=pb2.LeaseLost(lease=LEASE, reason="evicted")), 1.0)
    assert [e.event for e in told if isinstance(e, Tell)] == [LostLease("g", "a", 3, "evicted", will_resume=False)]
    driver = Driver(core.release(None, None, None, 1.0))
    with pytest.raises(OrchestratorLeaseLostError):
        driver.until()
    assert driver.steps == []


def test_loss_noticed_while_the_release_fails_is_raised_with_its_own_reason_and_not_told_again():
    core = held()
    driver = Driver(core.release(None, None, None, 1.0))
    driver.until(Attempt)
    [kept] = core._sessions.values()
    kept.handle(pb2.SessionNotice(lost=pb2.LeaseLost(lease=LEASE, reason="evicted")), 1.0)
    driver.answer(failure=Status("FAILED_PRECONDITION", "lease 3 is over"))
    with pytest.raises(OrchestratorLeaseLostError, match="evicted"):
        driver.until()
    assert not [step for step in driver.steps if isinstance(step, Tell)]


def reopened_without_lease(core: ClientCore) -> list[object]:
    """What follows when the job's stream broke, and the answer on the next one lists no lease."""
    [kept] = core._sessions.values()
    kept.stream_ended(Status("UNAVAILABLE", "gone"), now=1.0, jitter=0.5)
    kept.stream_begins()
    kept.renewal_goes_out(2.0)
    return kept.handle(pb2.SessionNotice(opened=pb2.SessionOpened(ttl_ms=30_000)), 2.0)


def tells(effects: list[object]) -> list[LostLease]:
    return [effect.event for effect in effects if isinstance(effect, Tell)]


def test_lease_that_is_being_given_back_while_the_stream_is_opened_anew_is_not_lost():
    """The orchestrator came back and recorded the release; the answer to it comes after the stream's."""
    core = held()
    driver = Driver(core.release(None, None, None, 1.0))
    driver.until(Attempt)
    assert tells(reopened_without_lease(core)) == []
    driver.answer(pb2.YieldResponse(success=True))
    driver.until()
    assert core.book.all_held() == []
    assert isinstance(Driver(core.acquire(None, None, None, 3.0)).until(Attempt), Attempt)


def test_lease_that_is_lost_while_it_is_given_back_is_told_once_by_the_release():
    core = held()
    driver = Driver(core.release(None, None, None, 1.0))
    driver.until(Attempt)
    assert tells(reopened_without_lease(core)) == []
    driver.answer(failure=Status("FAILED_PRECONDITION", "lease 3 expired"))
    with pytest.raises(OrchestratorLeaseLostError, match="lease 3 expired"):
        driver.until()
    assert [lost.fencing_token for lost in tells(driver.steps)] == [3]
    # The next one is seen missing as ever.
    later = held()
    assert [lost.fencing_token for lost in tells(reopened_without_lease(later))] == [3]


def test_closing_gives_back_once_and_wakes_who_waits_first():
    core = held()
    driver = Driver(core.close())
    assert isinstance(driver.until(Wake), Wake)
    assert core.is_closed
    attempt = driver.until(Attempt)
    assert attempt.outlives_close
    driver.answer(pb2.YieldResponse(success=True))
    assert [kept.session.job_id for kept in driver.until()] == ["a"]
    assert Driver(core.close()).until() is None
    assert core.book.all_held() == []


def test_closing_without_sessions_gives_nothing_back():
    core = make(use_sessions=False)
    driver = Driver(core.acquire(None, None, None, 0.0))
    driver.until(Attempt)
    driver.answer(pb2.AcquireResponse(success=True, leases=[LEASE]))
    driver.until()
    closing = Driver(core.close())
    closing.until()
    assert not [step for step in closing.steps if isinstance(step, Attempt)]


def test_call_that_is_under_way_when_the_client_is_closed_ends_with_that_reason():
    core = make(use_sessions=False)
    driver = Driver(core.acquire(None, None, None, 0.0))
    driver.until(Attempt)
    Driver(core.close()).until()
    driver.answer(failure=Status("CANCELLED", "channel closed"))
    with pytest.raises(OrchestratorError, match="closed during the call"):
        driver.until()


def test_call_that_pauses_when_the_client_is_closed_is_not_sent_again():
    core = make(use_sessions=False)
    core.contact.made(0.0)
    driver = Driver(core.acquire(None, None, None, 0.0))
    driver.until(Attempt)
    driver.answer(failure=Status("UNAVAILABLE", "gone"))
    driver.until(Pause)
    Driver(core.close()).until()
    with pytest.raises(OrchestratorError, match="closed during the call"):
        driver.until()


def test_what_the_parent_held_is_not_the_childs_to_give_back_unless_it_acquires_it_too():
    core = make(use_sessions=False, inherited=frozenset([GROUP]))
    with pytest.raises(OrchestratorError, match="the process that this one was forked from"):
        Driver(core.release(None, None, None, 0.0)).until()
    driver = Driver(core.acquire(None, None, None, 0.0))
    driver.until(Attempt)
    driver.answer(pb2.AcquireResponse(success=True, leases=[LEASE]))
    driver.until()
    assert Driver(core.release(None, None, None, 0.0)).until(Attempt).request.fencing_token == 3


def test_question_is_given_up_after_the_connect_time_even_where_the_orchestrator_answered_before():
    core = held()
    driver = Driver(core.list_groups(None, 10.0))
    driver.now = 10.0

    def fail_for_ever() -> None:
        while True:
            driver.until(Attempt)
            driver.answer(failure=Status("UNAVAILABLE", "gone"), now=driver.now + 0.1)

    with pytest.raises(OrchestratorConnectionError):
        fail_for_ever()
    assert 12.0 < driver.now < 12.5  # 2 s from the first failure on; without that bound: ten minutes


def test_outage_is_said_at_its_begin_now_and_then_and_at_its_end():
    contact, gone = Contact("unix:/o"), Status("UNAVAILABLE", "refused")
    assert contact.failed(gone, 0.0) == []  # Before the first answer it is the caller's to hear.
    assert contact.made(1.0) == []
    said = [contact.failed(gone, 10.0 + second) for second in range(int(REMINDER_S) + 1)]
    assert [len(lines) for lines in said] == [1] + [0] * (int(REMINDER_S) - 1) + [1]
    assert f"unreachable for {REMINDER_S:.0f} s, retrying" in said[-1][0].text
    [back] = contact.made(50.0)
    assert back == Say(logging.WARNING, "orchestrator at unix:/o reachable again after 40.0 s")
    assert contact.made(51.0) == []
