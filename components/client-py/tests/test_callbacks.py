"""Functions of the user's that are called for what the orchestrator says unasked."""

import asyncio
import logging
import queue
import threading
import time

import pytest

from faces import AioFace
from timeslice._core.client import CLOSE_S
from timeslice._core.telling import SLOW_S, Listeners
from timeslice._sync.callbacks import Callbacks
from timeslice.orchestrator.exceptions import OrchestratorLeaseLostError
from timeslice.orchestrator.types import LostLease, RevokeNotice, SharedLease
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2


def revoke(orchestrator, reason="somebody waits"):
    lease = orchestrator.groups["trainers"].lease
    return pb2.SessionNotice(revoke=pb2.RevokeNotice(lease=lease, grace_ms=1500, reason=reason))


def lost(orchestrator, *, will_resume=False):
    lease = orchestrator.groups["trainers"].lease
    return pb2.SessionNotice(lost=pb2.LeaseLost(lease=lease, reason="held too long", will_resume=will_resume))


@pytest.fixture
def told() -> queue.SimpleQueue:
    """Every event that a callback was given, in order."""
    return queue.SimpleQueue()


def all_of(told: queue.SimpleQueue) -> list:
    """What is in it by now."""
    events = []
    while not told.empty():
        events.append(told.get())
    return events


def test_revocation_is_told_with_its_facts(orchestrator, connect, told):
    client = connect(on_revoke=told.put)
    client.acquire()
    orchestrator.notify("a", revoke(orchestrator))
    assert told.get(timeout=10) == RevokeNotice("trainers", "a", 1.5, "somebody waits")
    client.close()
    assert told.empty()


def test_loss_is_told_once_and_raised_too(orchestrator, connect, told):
    client = connect(on_lost=told.put)
    client.acquire()
    orchestrator.notify("a", lost(orchestrator))
    orchestrator.notify("a", lost(orchestrator))
    assert told.get(timeout=10) == LostLease("trainers", "a", 1, "held too long", will_resume=False)
    with pytest.raises(OrchestratorLeaseLostError):
        client.release()
    client.close()
    assert all_of(told) == []


def test_loss_that_shows_only_at_release_is_told_once(orchestrator, connect, told):
    client = connect(on_lost=told.put)
    client.acquire()
    orchestrator.end_lease("trainers", "", tell=False)
    with pytest.raises(OrchestratorLeaseLostError):
        client.release()
    client.close()
    [event] = all_of(told)
    assert (event.group_id, event.fencing_token, event.reason) == ("trainers", 1, "lease 1 is over")


def test_loss_behind_a_broken_connection_is_told_once(orchestrator, connect, told):
    client = connect(on_lost=told.put)
    client.acquire()
    orchestrator.stop()
    orchestrator.groups["trainers"].lease = None
    orchestrator.start()
    event = told.get(timeout=10)
    assert (event.fencing_token, event.will_resume) == (1, False)
    client.close()
    assert all_of(told) == []


def test_frozen_job_is_told_once_and_keeps_its_place_over_a_broken_connection(orchestrator, connect, face, told):
    client = connect(on_lost=told.put)
    client.acquire()
    orchestrator.notify("a", lost(orchestrator, will_resume=True))
    orchestrator.notify("a", lost(orchestrator, will_resume=True))
    assert told.get(timeout=10) == LostLease("trainers", "a", 1, "held too long", will_resume=True)
    # While it waits for its next turn it holds nothing, and that is no loss.
    orchestrator.stop()
    old = orchestrator.groups["trainers"].lease
    orchestrator.groups["trainers"].lease = None
    orchestrator.start()
    orchestrator.wait_until(lambda: len(orchestrator.session_of("a").requests) >= 2)
    new = pb2.Lease(group_id="trainers", job_id="a", fencing_token=7, owner_session_id=old.owner_session_id)
    orchestrator.groups["trainers"].lease = new
    orchestrator.notify("a", pb2.SessionNotice(regranted=pb2.Regranted(lease=new, replaces_token=1)))
    face.wait_until(client, lambda: client._engine.core.book.token(("a", "trainers")) == 7)
    client.release()
    client.close()
    assert all_of(told) == []


def test_frozen_job_whose_next_turn_is_taken_away_is_told_of_the_loss(orchestrator, connect, told):
    client = connect(on_lost=told.put)
    client.acquire()
    orchestrator.notify("a", lost(orchestrator, will_resume=True))
    orchestrator.notify("a", lost(orchestrator, will_resume=False))
    assert [told.get(timeout=10).will_resume for _ in range(2)] == [True, False]


def test_sharing_is_told_to_the_owner_and_to_the_other(orchestrator, connect, told, caplog):
    client = connect(on_shared=told.put)
    client.acquire()
    owned = orchestrator.groups["trainers"].lease
    theirs = pb2.Lease(group_id="trainers", job_id="a", fencing_token=1, attached=2, owner_session_id="another")
    owned.attached = 2
    with caplog.at_level(logging.WARNING, "timeslice"):
        for lease in (owned, theirs):
            notice = pb2.LeaseShared(lease=lease, other="process 7 on node n")
            orchestrator.notify("a", pb2.SessionNotice(shared=notice))
        events = [told.get(timeout=10) for _ in range(2)]
    assert events == [
        SharedLease("trainers", "a", 1, attached=2, is_owner=is_owner, other="process 7 on node n")
        for is_owner in (True, False)
    ]
    assert caplog.text.count("is held by 2 process(es): process 7 on node n") == 2


def test_blocked_callback_stops_neither_renewals_nor_other_callbacks(orchestrator, connect, told):
    orchestrator.ttl_ms = 300
    entered, go_on = threading.Event(), threading.Event()

    def on_revoke(notice):
        entered.set()
        assert go_on.wait(30)
        told.put(notice.reason)

    client = connect(on_revoke=on_revoke, on_lost=told.put)
    client.acquire()
    orchestrator.notify("a", revoke(orchestrator, "first"))
    orchestrator.notify("a", revoke(orchestrator, "second"))
    assert entered.wait(10)
    renewals = len(orchestrator.session_of("a").requests)
    orchestrator.wait_until(lambda: len(orchestrator.session_of("a").requests) >= renewals + 4)
    orchestrator.notify("a", lost(orchestrator))
    assert isinstance(told.get(timeout=10), LostLease)
    go_on.set()
    assert [told.get(timeout=10) for _ in range(2)] == ["first", "second"]


def test_callback_that_raises_is_logged_and_called_again(orchestrator, connect, told, caplog):
    def on_revoke(notice):
        told.put(notice.reason)
        raise RuntimeError(f"cannot cope with {notice.reason}")

    client = connect(on_revoke=on_revoke)
    client.acquire()
    with caplog.at_level(logging.ERROR, "timeslice"):
        orchestrator.notify("a", revoke(orchestrator, "first"))
        orchestrator.notify("a", revoke(orchestrator, "second"))
        assert [told.get(timeout=10) for _ in range(2)] == ["first", "second"]
        assert client.release().success
        client.close()
    assert "on_revoke raised on RevokeNotice(" in caplog.text
    assert "cannot cope with second" in caplog.text


def test_callback_may_give_the_group_back(orchestrator, connect):
    clients = []
    client = connect(on_revoke=lambda notice: clients[0].release(notice.job_id, notice.group_id))
    clients.append(client)
    client.acquire()
    orchestrator.notify("a", revoke(orchestrator))
    orchestrator.wait_until(lambda: orchestrator.holder("trainers") is None)


def test_callback_may_close_the_client(orchestrator, connect, told):
    clients = []

    def on_revoke(_):
        started = time.monotonic()
        clients[0].close()
        told.put(time.monotonic() - started)

    clients.append(connect(on_revoke=on_revoke))
    clients[0].acquire()
    orchestrator.notify("a", revoke(orchestrator))
    assert told.get(timeout=15) < CLOSE_S  # It does not wait for itself until that is over.
    assert orchestrator.holder("trainers") is None


def test_close_waits_for_the_callbacks_that_are_due(orchestrator, connect, face, told):
    entered, go_on = threading.Event(), threading.Event()

    def on_lost(event):
        entered.set()
        assert go_on.wait(30)
        told.put(event.fencing_token)

    client = connect(on_lost=on_lost)
    client.acquire()
    orchestrator.notify("a", lost(orchestrator))
    assert entered.wait(10)
    closing = threading.Thread(target=client.close)
    closing.start()
    orchestrator.wait_until(lambda: orchestrator.session_of("a").streams == 0)
    assert told.empty()
    go_on.set()
    closing.join(15)
    assert told.get_nowait() == 1
    assert face.working() == []


def test_slow_callback_is_said_while_it_runs_and_at_its_end(caplog):
    now = [0.0]
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def on_revoke(notice):
        entered.set()
        assert go_on.wait(30)
        if notice.reason == "second":
            ended.set()

    callbacks = Callbacks(Listeners(on_revoke=on_revoke), clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "timeslice"):
        callbacks.tell(RevokeNotice("g", "a", 1.0, "first"))
        assert entered.wait(10)
        now[0] = SLOW_S + 1
        callbacks.tell(RevokeNotice("g", "a", 1.0, "second"))
        assert "on_revoke has run for 6.0 s; 1 later call(s) of it wait" in caplog.text
        go_on.set()
        callbacks.close(10)
    assert ended.is_set()
    assert "on_revoke took 6.0 s" in caplog.text


# Coroutine functions.


@pytest.mark.parametrize("face", [AioFace], indirect=True)
def test_coroutine_function_runs_on_the_event_loop_of_the_client(orchestrator, connect, face, told):
    clients = []

    async def on_revoke(notice):
        assert asyncio.get_running_loop() is face.loop
        await clients[0]._client.release(notice.job_id, notice.group_id)
        told.put(notice.reason)

    clients.append(connect(on_revoke=on_revoke))
    clients[0].acquire()
    orchestrator.notify("a", revoke(orchestrator))
    assert told.get(timeout=10) == "somebody waits"
    assert orchestrator.holder("trainers") is None


@pytest.mark.parametrize("face", [AioFace], indirect=True)
def test_coroutine_function_that_never_ends_is_cancelled_by_close(orchestrator, connect, face, told):
    async def on_revoke(notice):
        try:
            told.put("entered")
            await asyncio.Event().wait()
        finally:
            told.put("cancelled")

    client = connect(on_revoke=on_revoke)
    client.acquire()
    orchestrator.notify("a", revoke(orchestrator))
    assert told.get(timeout=10) == "entered"
    client.close()
    assert told.get(timeout=10) == "cancelled"
    assert face.working() == []


@pytest.mark.parametrize("face", [AioFace], indirect=True)
def test_object_whose_call_is_a_coroutine_is_awaited(orchestrator, connect, told):
    class OnRevoke:
        async def __call__(self, notice):
            await asyncio.sleep(0)
            told.put(notice.grace_s)

    client = connect(on_revoke=OnRevoke())
    client.acquire()
    orchestrator.notify("a", revoke(orchestrator))
    assert told.get(timeout=10) == 1.5
