"""The client's decisions, on a clock that the test sets: what is repeated, how often, when it gives up."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timeslice._core.calls import AcquireCall, Call, GiveUp, Patience, Pause, Send, Status
from timeslice._core.leases import HeldLease, Holding, LeaseBook
from timeslice._core.sessions import Reconnect, Session, SessionState

PATIENCE = Patience(
    connect_timeout_s=2.0,
    unreachable_timeout_s=600.0,
    attempt_timeout_s=10.0,
    slice_s=25.0,
    backoff_first_s=0.05,
    backoff_max_s=0.5,
)
GONE = Status("UNAVAILABLE", "connection refused")
SILENT = Status("DEADLINE_EXCEEDED", "deadline exceeded")


def call(timeout_s=None, *, reached=True, safe=True) -> Call:
    return Call("release", patience=PATIENCE, now=0.0, timeout_s=timeout_s, reached=reached, safe=safe)


def acquire(timeout_s=None, *, reached=True) -> AcquireCall:
    return AcquireCall(
        "acquire",
        request_id="first",
        fresh_request_id="second",
        patience=PATIENCE,
        now=0.0,
        timeout_s=timeout_s,
        reached=reached,
    )


def until_given_up(a_call: Call, status: Status, now: float = 0.0) -> tuple[float, int, GiveUp]:
    """Time of the end, number of attempts, and the end, when every attempt fails at once with `status`."""
    attempts = 0
    while True:
        step = a_call.next(now)
        if isinstance(step, Send):
            attempts += 1
            step = a_call.failed(status, now, jitter=0.5)
        if isinstance(step, GiveUp):
            return now, attempts, step
        now += step.seconds


REFUSALS = [
    "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION", "ABORTED", "UNIMPLEMENTED", "INTERNAL",
    "UNKNOWN", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "OUT_OF_RANGE", "ALREADY_EXISTS", "DATA_LOSS",
]  # fmt: skip


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("make", [call, acquire])
def test_refusal_is_final(make, code):
    status = Status(code, "no")
    assert until_given_up(make(), status) == (0.0, 1, GiveUp(status))


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED"])
@pytest.mark.parametrize("make", [call, acquire])
def test_server_that_never_answered_is_given_up_after_the_connect_time(make, code):
    ended, attempts, end = until_given_up(make(reached=False), Status(code, "refused"))
    assert ended == pytest.approx(2.0)
    assert attempts > 3
    assert end.status == Status("UNAVAILABLE", "refused")


@pytest.mark.parametrize("make", [call, acquire])
def test_server_that_answered_before_is_waited_for(make):
    ended, attempts, end = until_given_up(make(), GONE)
    assert ended == pytest.approx(600.0)
    assert attempts < 2000
    assert end.status.code == "UNAVAILABLE"


@pytest.mark.parametrize("make", [call, acquire])
def test_callers_own_time_ends_the_wait_for_a_missing_server(make):
    ended, _, end = until_given_up(make(5.0), GONE)
    assert ended == pytest.approx(5.0)
    assert end.status.code == "UNAVAILABLE"


@pytest.mark.parametrize("make", [call, acquire])
def test_no_time_at_all_is_too_late(make):
    step = make(0.0).next(0.0)
    assert isinstance(step, GiveUp)
    assert step.status.code == "DEADLINE_EXCEEDED"
    assert "did not end within 0 s" in step.status.details


def test_pauses_grow_to_their_bound_and_jitter_halves_them_at_most():
    a_call = call()
    pauses = [a_call.failed(GONE, 0.0, jitter=1.0) for _ in range(6)]
    assert pauses == [Pause(s) for s in (0.05, 0.1, 0.2, 0.4, 0.5, 0.5)]
    assert call().failed(GONE, 0.0, jitter=0.0) == Pause(0.025)


def test_answer_starts_patience_anew():
    a_call = call()
    a_call.failed(GONE, 0.0, jitter=1.0)
    a_call.failed(GONE, 599.0, jitter=1.0)
    a_call.reached()
    assert a_call.failed(GONE, 601.0, jitter=1.0) == Pause(0.05)


def test_silent_server_is_asked_again_only_where_that_is_safe():
    assert isinstance(call().failed(SILENT, 10.0, jitter=0.5), Pause)
    assert call(safe=False).failed(SILENT, 10.0, jitter=0.5) == GiveUp(SILENT)


def test_attempt_cut_by_the_callers_deadline_is_too_late_though_the_timer_was_early():
    a_call = call(5.0)
    assert a_call.next(0.0) == Send(5.0)
    end = a_call.failed(SILENT, 4.9995, jitter=0.5)
    assert isinstance(end, GiveUp)
    assert end.status.code == "DEADLINE_EXCEEDED"
    assert "within 5 s" in end.status.details


@pytest.mark.parametrize(
    ("timeout_s", "now", "expected"),
    [
        (None, 0.0, Send(35.0, "first", 25_000)),
        (100.0, 0.0, Send(35.0, "first", 25_000)),
        (100.0, 70.0, Send(30.0, "first", 25_000)),
        (100.0, 75.0, Send(25.0, "first", 0)),
        (100.0, 99.0, Send(1.0, "first", 0)),
        (3.0, 0.0, Send(3.0, "first", 0)),
    ],
)
def test_acquire_is_sliced_and_its_last_slice_ends_by_the_deadline(timeout_s, now, expected):
    assert acquire(timeout_s).next(now) == expected


def test_server_without_extensions_gets_one_attempt_as_long_as_the_caller_waits():
    an_acquire = acquire(100.0)
    an_acquire.without_extensions()
    assert an_acquire.next(0.0) == Send(100.0, "first")
    assert isinstance(an_acquire.failed(SILENT, 50.0, jitter=0.5), GiveUp)


def test_silent_slice_is_asked_again_under_the_same_request():
    an_acquire = acquire()
    assert isinstance(an_acquire.failed(SILENT, 35.0, jitter=0.5), Pause)
    step = an_acquire.next(36.0)
    assert isinstance(step, Send)
    assert step.request_id == "first"


def test_aborted_after_a_lost_answer_starts_over_once():
    over = Status("ABORTED", "this request's lease was given back")
    an_acquire = acquire()
    an_acquire.failed(GONE, 0.0, jitter=0.5)
    assert an_acquire.failed(over, 40.0, jitter=0.5) == Pause(0.0)
    step = an_acquire.next(40.0)
    assert isinstance(step, Send)
    assert step.request_id == "second"
    assert an_acquire.failed(over, 41.0, jitter=0.5) == GiveUp(over)


# Sessions.


def open_session(ttl_ms=30_000) -> Session:
    session = Session("s", "a", 30.0, PATIENCE)
    session.renewal_sent(0.0)
    session.opened(ttl_ms)
    return session


def test_session_is_renewed_every_third_of_the_time_in_force():
    session = Session("s", "a", 30.0, PATIENCE)
    assert session.renewal_due_in(0.0) == 0.0
    session.renewal_sent(100.0)
    assert session.renewal_due_in(104.0) == 6.0
    session.opened(6_000)
    assert session.renewal_due_in(101.0) == 1.0
    assert session.renewal_due_in(103.0) == -1.0


def test_life_counts_from_the_sending_of_the_last_answered_renewal():
    session = open_session(6_000)
    session.renewal_sent(2.0)
    session.renewal_sent(4.0)
    assert session.silent_for(5.0) == 5.0
    session.opened(6_000)  # to the one of 2.0
    assert session.silent_for(7.0) == 5.0
    assert not session.is_overdue(8.0)
    assert session.is_overdue(8.1)


def test_answers_of_an_old_stream_do_not_count_on_the_next():
    session = open_session(6_000)
    session.renewal_sent(2.0)
    session.stream_ended(GONE, jitter=0.5)
    session.renewal_sent(10.0)
    session.opened(6_000)
    assert session.silent_for(11.0) == 1.0


def test_session_that_never_was_is_not_overdue():
    assert not Session("s", "a", 30.0, PATIENCE).is_overdue(1e9)


@pytest.mark.parametrize("code", ["OK", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL"])
def test_broken_stream_is_opened_again(code):
    session = open_session()
    assert isinstance(session.stream_ended(Status(code, ""), jitter=1.0), Reconnect)
    assert session.state is SessionState.OPENING
    assert session.renewal_due_in(0.0) == 0.0


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "FAILED_PRECONDITION"])
def test_refused_stream_is_not_opened_again(code):
    session = open_session()
    refusal = Status(code, "no")
    assert session.stream_ended(refusal, jitter=1.0) is None
    assert (session.state, session.refusal) == (SessionState.REFUSED, refusal)


def test_server_that_knows_no_sessions_is_left_alone():
    session = Session("s", "a", 30.0, PATIENCE)
    assert session.stream_ended(Status("UNIMPLEMENTED", ""), jitter=1.0) is None
    assert session.state is SessionState.UNSUPPORTED


def test_reconnects_slow_down_and_an_answer_resets_them():
    session = open_session()
    pauses = [session.stream_ended(GONE, jitter=1.0) for _ in range(5)]
    assert pauses == [Reconnect(s) for s in (0.05, 0.1, 0.2, 0.4, 0.5)]
    session.opened(30_000)
    assert session.stream_ended(GONE, jitter=1.0) == Reconnect(0.05)


def test_closed_session_stays_closed():
    session = open_session()
    session.close()
    assert session.opened(30_000)
    assert session.stream_ended(GONE, jitter=1.0) is None
    assert session.state is SessionState.CLOSED


# Leases: any order of grants, yields and notices, late and repeated ones among them.

GROUP = Holding("a", "g")


class LeasesOfAnyOrder(RuleBasedStateMachine):
    """The orchestrator's truth beside the client's book: tokens only rise, and the last word decides.

    A lease may have its owner in another process of the job: then it outlives our giving it back, and the next acquire
    gets it once more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook()
        self.asking = False
        self.top = 0
        self.is_owned_elsewhere = False
        self.over: set[int] = set()
        self.lost: set[int] = set()
        self.told: list[int] = []

    def current(self) -> HeldLease:
        return HeldLease(GROUP, self.top)

    @precondition(lambda self: not self.asking)
    @rule()
    def ask(self) -> None:
        self.book.asking(GROUP)
        self.asking = True

    @precondition(lambda self: self.asking)
    @rule(granted=st.booleans(), is_owned_elsewhere=st.booleans(), lost_first=st.booleans())
    def answer(self, granted: bool, is_owned_elsewhere: bool, lost_first: bool) -> None:
        if granted:
            if not self.is_owned_elsewhere or self.top in self.over:
                self.top += 1
                self.is_owned_elsewhere = is_owned_elsewhere
            is_held = self.book.token(GROUP) == self.top
            if lost_first and not is_held:
                assert self.book.lost(self.current(), "evicted before the answer came")
                self.over.add(self.top)
                self.lost.add(self.top)
        self.book.asked(GROUP, self.top if granted else 0)
        self.asking = False

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        token = data.draw(st.integers(0, self.top))
        is_held = token > 0 and self.book.token(GROUP) == token
        if token == self.top and token not in self.lost and not is_held:
            return  # nobody is told of the end of what it has given back
        news = self.book.lost(HeldLease(GROUP, token), "evicted")
        assert news == is_held
        if news:
            self.over.add(token)
            self.lost.add(token)

    @precondition(lambda self: self.book.token(GROUP))
    @rule()
    def give_back(self) -> None:
        token = self.book.token(GROUP)
        self.book.given_back(GROUP, token)
        if not self.is_owned_elsewhere:
            self.over.add(token)

    @precondition(lambda self: self.is_owned_elsewhere and not self.asking and not self.book.token(GROUP))
    @rule()
    def end_elsewhere(self) -> None:
        self.over.add(self.top)

    @rule()
    def tell(self) -> None:
        loss = self.book.take_loss(GROUP)
        if loss is not None:
            assert loss.lease.token not in self.told
            self.told.append(loss.lease.token)
            assert loss.lease.token in self.over

    @invariant()
    def nothing_is_held_that_is_over(self) -> None:
        assert self.book.token(GROUP) not in self.over

    @invariant()
    def only_the_newest_is_held(self) -> None:
        assert self.book.token(GROUP) in (0, self.top)

    @invariant()
    def no_lease_of_ours_is_taken_for_an_orphan(self) -> None:
        if self.book.token(GROUP):
            assert self.book.orphans([self.current()]) == []
        for token in self.lost:
            assert self.book.orphans([HeldLease(GROUP, token)]) == []


LeasesOfAnyOrder.TestCase.settings = settings(max_examples=100, deadline=None)
TestLeasesOfAnyOrder = LeasesOfAnyOrder.TestCase


def test_lease_that_was_given_back_may_be_granted_again():
    """Another process of the job holds it still."""
    book = LeaseBook()
    for _ in range(2):
        book.asking(GROUP)
        book.asked(GROUP, 4)
        assert book.all_held() == [HeldLease(GROUP, 4)]
        book.given_back(GROUP, 4)
        assert book.all_held() == []


def test_lease_that_was_granted_again_can_be_lost_before_the_answer_comes():
    book = LeaseBook()
    book.asking(GROUP)
    book.asked(GROUP, 4)
    book.given_back(GROUP, 4)
    assert not book.lost(HeldLease(GROUP, 4), "a late notice")
    book.asking(GROUP)
    assert book.lost(HeldLease(GROUP, 4), "its owner gave it back")
    assert not book.lost(HeldLease(GROUP, 4), "said twice")
    book.asked(GROUP, 4)
    assert book.token(GROUP) == 0
    assert book.take_loss(GROUP) is not None


def test_lease_that_was_granted_again_after_its_acquire_had_ended_is_an_orphan():
    book = LeaseBook()
    granted = HeldLease(GROUP, 4)
    book.asking(GROUP)
    book.asked(GROUP, 4)
    book.given_back(GROUP, 4)
    assert book.orphans([granted]) == []  # the list may be older than the yield
    book.asking(GROUP)
    book.asked(GROUP, 0)
    assert book.orphans([granted]) == [granted]
    book.given_back(GROUP, 4)
    assert book.orphans([granted]) == []


def test_lease_that_nobody_asked_for_any_more_is_an_orphan():
    book = LeaseBook()
    granted = HeldLease(GROUP, 3)
    book.asking(GROUP)
    assert book.orphans([granted]) == []  # its answer may be on the way
    book.asked(GROUP, 0)
    assert book.orphans([granted]) == [granted]
    book.given_back(GROUP, 3)
    assert book.orphans([granted]) == []


def test_only_what_was_held_when_the_stream_was_opened_can_be_missing():
    book = LeaseBook()
    book.asking(GROUP)
    book.asked(GROUP, 1)
    expected = book.held_by_job("a")
    other = Holding("a", "other")
    book.asking(other)
    book.asked(other, 5)
    assert book.missing(expected, [HeldLease(other, 5)]) == [HeldLease(GROUP, 1)]
    assert book.missing(expected, [HeldLease(GROUP, 1)]) == []


LOST = "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("token", "code", "is_overdue", "is_lost"),
    [
        (1, LOST, False, True),
        (1, LOST, True, True),
        (1, "UNAVAILABLE", True, True),
        (1, "UNAVAILABLE", False, False),
        (1, "DEADLINE_EXCEEDED", True, False),
        (1, "PERMISSION_DENIED", False, False),
        (0, LOST, True, False),
        (0, "UNAVAILABLE", True, False),
    ],
)
def test_release_that_failed_tells_whether_the_lease_is_lost(token, code, is_overdue, is_lost):
    book = LeaseBook()
    if token:
        book.asking(GROUP)
        book.asked(GROUP, token)
    loss = book.release_failed(GROUP, token, Status(code, "why"), is_overdue)
    assert (loss is not None) == is_lost
    if loss is not None:
        assert loss.lease == HeldLease(GROUP, token)
        assert "why" in loss.reason
    assert book.token(GROUP) == (0 if is_lost else token)


def test_same_lease_granted_to_two_acquires_is_one():
    book = LeaseBook()
    for _ in range(2):
        book.asking(GROUP)
    for _ in range(2):
        book.asked(GROUP, 4)
    assert book.all_held() == [HeldLease(GROUP, 4)]
    book.given_back(GROUP, 4)
    assert book.all_held() == []
