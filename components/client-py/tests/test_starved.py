"""Row 5, the client's side: renewals that its own process held up are said, not hidden."""

import ctypes
import logging

import pytest

from faces import AioFace
from timeslice._core.calls import Patience, Status
from timeslice._core.contact import Contact
from timeslice._core.keeping import KeptSession
from timeslice._core.leases import LeaseBook
from timeslice._core.sessions import Session


def hold_the_gil(seconds: float) -> None:
    """As native code does that forgets to let go of it: every thread of this process stands still."""
    assert ctypes.PyDLL(None).usleep(int(seconds * 1e6)) == 0


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "late (one is due every" in record.getMessage()]


def test_held_up_renewal_is_said_with_how_late_it_was(orchestrator, connect, caplog):
    orchestrator.ttl_ms = 900
    with caplog.at_level(logging.WARNING, "timeslice"):
        client = connect()
        client.acquire()
        session = orchestrator.session_of("a")
        orchestrator.wait_until(lambda: len(session.requests) >= 3)
        caplog.clear()
        hold_the_gil(0.9)
        renewals = len(session.requests)
        orchestrator.wait_until(lambda: len(session.requests) >= renewals + 2)
    [line] = lines(caplog)
    assert line.startswith("a renewal of job a's session went out 0.")
    assert "s late (one is due every 0.3 s)" in line
    assert "held the GIL" in line
    assert client.release().success


@pytest.mark.parametrize("face", [AioFace], indirect=True)
def test_blocked_event_loop_is_said(orchestrator, connect, face, caplog):
    orchestrator.ttl_ms = 900

    async def block() -> None:
        ctypes.CDLL(None).usleep(900_000)  # Lets go of the GIL: only the loop stands still.

    with caplog.at_level(logging.WARNING, "timeslice"):
        client = connect()
        client.acquire()
        session = orchestrator.session_of("a")
        orchestrator.wait_until(lambda: len(session.requests) >= 3)
        caplog.clear()
        face.call(block())
        renewals = len(session.requests)
        orchestrator.wait_until(lambda: len(session.requests) >= renewals + 2)
    [line] = lines(caplog)
    assert "the event loop was blocked" in line


# The decision, on a clock that the test sets.


@pytest.fixture
def kept() -> KeptSession:
    """Opened at 0 with a time to live of 30 s, so a renewal is due every 10 s."""
    kept = KeptSession(Session("s", "a", 30.0, Patience()), LeaseBook(), Contact("unix:/o"))
    assert kept.renewal_goes_out(0.0) == []
    kept.session.opened(30_000)
    return kept


def renew(kept: KeptSession, now: float) -> int:
    """The number of lines that a renewal at this time brings."""
    said = kept.renewal_goes_out(now)
    kept.session.opened(30_000)
    return len(said)


def test_lateness_is_said_once_per_episode(kept):
    assert renew(kept, 10.0) == 0
    assert renew(kept, 35.0) == 1
    assert renew(kept, 60.0) == 0
    assert renew(kept, 70.0) == 0  # On time: the episode is over.
    assert renew(kept, 95.0) == 1


@pytest.mark.parametrize(("now", "said"), [(10.0, 0), (14.9, 0), (15.1, 1)])
def test_half_an_interval_is_late(kept, now, said):
    assert renew(kept, now) == said


def test_renewal_before_its_time_is_not_late(kept):
    kept.renew_now()
    assert kept.due_in(3.0) == 0.0
    assert renew(kept, 3.0) == 0
    assert kept.due_in(3.0) == 10.0


def test_first_renewal_on_a_new_stream_is_not_late(kept):
    kept.stream_ended(Status("UNAVAILABLE", "gone"), now=5.0, jitter=0.5)
    assert renew(kept, 500.0) == 0
