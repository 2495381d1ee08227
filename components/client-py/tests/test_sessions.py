"""What keeps a lease alive, how its loss is told, and what a restart of the orchestrator does to a job: a delay."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faces import SyncFace
from timeslice._processes import start_time
from timeslice.orchestrator.exceptions import (
    OrchestratorConnectionError,
    OrchestratorError,
    OrchestratorInternalError,
    OrchestratorLeaseLostError,
)
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2


def renewals(orchestrator, job_id="a"):
    return orchestrator.session_of(job_id).requests


def test_session_names_this_process_and_is_renewed_every_third_of_its_time(orchestrator, connect):
    orchestrator.ttl_ms = 300
    connect(session_ttl_s=12).acquire()
    orchestrator.wait_until(lambda: len(renewals(orchestrator)) >= 5)
    first = renewals(orchestrator)[0][1]
    assert (first.job_id, first.ttl_ms) == ("a", 12_000)
    [process] = first.processes
    assert (process.pid, process.start_time) == (os.getpid(), start_time(os.getpid()))
    times = [t for t, _ in renewals(orchestrator)]
    assert times[4] - times[0] > 0.3  # Four times 0.1 s; when one of them was read is the machine's to say.
    assert len({request.session_id for _, request in renewals(orchestrator)}) == 1


def test_one_session_serves_all_groups_of_a_job(orchestrator, connect):
    client = connect()
    client.acquire()
    client.acquire(group_id="samplers")
    assert len(orchestrator.sessions) == 1
    client.release()
    client.release(group_id="samplers")
    client.acquire("b", "samplers")
    assert sorted(s.job_id for s in orchestrator.sessions.values()) == ["a", "b"]


@pytest.mark.parametrize("call", ["release", "acquire"])
def test_lost_lease_is_raised_at_the_next_call_once(orchestrator, connect, face, call):
    client = connect()
    client.acquire()
    orchestrator.end_lease("trainers", "the operator ended it")
    wait_for_token(face, client, 0)
    with pytest.raises(OrchestratorLeaseLostError, match="the operator ended it") as caught:
        getattr(client, call)()
    assert (caught.value.job_id, caught.value.group_id, caught.value.fencing_token) == ("a", "trainers", 1)
    assert orchestrator.seen("Yield") == []
    assert client.acquire().success
    client.release()
    assert [request.fencing_token for request in orchestrator.seen("Yield")] == [2]


def test_loss_on_one_group_is_not_raised_by_calls_on_another(orchestrator, connect, face):
    client = connect()
    client.acquire()
    client.acquire(group_id="samplers")
    orchestrator.end_lease("trainers", "gone")
    wait_for_token(face, client, 0)
    client.release(group_id="samplers")
    with pytest.raises(OrchestratorLeaseLostError):
        client.release()


def test_lease_that_ended_unnoticed_is_lost_at_release(orchestrator, connect):
    client = connect()
    client.acquire()
    orchestrator.end_lease("trainers", "", tell=False)
    with pytest.raises(OrchestratorLeaseLostError, match="lease 1 is over"):
        client.release()


def test_on_accelerators_raises_the_loss_at_its_end(orchestrator, connect):
    client = connect()

    def phase() -> None:
        with client.on_accelerators():
            orchestrator.end_lease("trainers", "evicted")

    with pytest.raises(OrchestratorLeaseLostError):
        phase()


def test_error_in_the_block_is_the_cause_of_the_loss(orchestrator, connect):
    client = connect()

    def phase() -> None:
        with client.on_accelerators():
            orchestrator.end_lease("trainers", "evicted")
            raise MemoryError("the device is somebody else's")

    with pytest.raises(OrchestratorLeaseLostError) as caught:
        phase()
    assert isinstance(caught.value.__cause__, MemoryError)


def test_evicted_job_that_is_granted_again_yields_its_new_lease(orchestrator, connect, face):
    client = connect()
    client.acquire()
    old = orchestrator.groups["trainers"].lease
    orchestrator.notify("a", pb2.SessionNotice(lost=pb2.LeaseLost(lease=old, reason="hold too long", will_resume=True)))
    new = pb2.Lease(group_id="trainers", job_id="a", fencing_token=9, owner_session_id=old.owner_session_id)
    orchestrator.groups["trainers"].lease = new
    orchestrator.notify("a", pb2.SessionNotice(regranted=pb2.Regranted(lease=new, replaces_token=1)))
    wait_for_token(face, client, 9)
    client.release()
    assert orchestrator.seen("Yield")[0].fencing_token == 9


def test_holder_notices_a_restart_only_as_a_delay(orchestrator, connect, background, caplog):
    client = connect()
    client.acquire()
    session_id = next(iter(orchestrator.sessions))
    with caplog.at_level(logging.WARNING, "timeslice"):
        orchestrator.stop()
        releasing = background(client.release)
        wait_for_log(caplog, "unreachable, retrying")
        assert releasing.is_running()
        orchestrator.start()
        assert releasing.result().success
        orchestrator.wait_until(lambda: orchestrator.session_of("a").streams == 1)
    assert orchestrator.holder("trainers") is None
    assert list(orchestrator.sessions) == [session_id]
    wait_for_log(caplog, "reachable again")
    assert caplog.text.count("unreachable, retrying") == 1


def test_first_message_after_a_restart_says_what_is_held(orchestrator, connect, caplog):
    """The restarted orchestrator may have lost its records."""
    client = connect(session_ttl_s=12)
    client.acquire()
    client.acquire(group_id="samplers")
    evicted = orchestrator.groups["samplers"].lease
    frozen = pb2.LeaseLost(lease=evicted, reason="hold too long", will_resume=True)
    orchestrator.notify("a", pb2.SessionNotice(lost=frozen))
    wait_for_log(caplog, "goes on at its next turn")
    orchestrator.ttl_ms = 300
    before = len(renewals(orchestrator))
    orchestrator.stop()
    orchestrator.start()
    orchestrator.wait_until(lambda: len(renewals(orchestrator)) >= before + 2)
    first, second = (request for _, request in renewals(orchestrator)[before : before + 2])
    assert list(first.held) == [pb2.HeldLease(group_id="trainers", fencing_token=1)]
    assert list(second.held) == []


def test_waiter_keeps_its_request_through_a_restart(orchestrator, connect, background):
    orchestrator.hold("trainers")
    waiting = background(connect().acquire)
    orchestrator.wait_until(lambda: len(orchestrator.groups["trainers"].waiting) == 1)
    orchestrator.stop()
    orchestrator.start()
    orchestrator.wait_until(lambda: len(orchestrator.seen("Acquire")) == 2)
    orchestrator.free("trainers")
    assert waiting.result().success
    assert len({request.request_id for request in orchestrator.seen("Acquire")}) == 1
    assert orchestrator.groups["trainers"].last_token == 2  # the stranger's, then ours: granted once


def test_lost_answer_of_an_acquire_brings_the_same_lease(orchestrator, connect):
    orchestrator.fail_next("Acquire", "UNAVAILABLE", "connection reset", after=True)
    client = connect()
    assert client.acquire().success
    assert orchestrator.groups["trainers"].last_token == 1
    client.release()
    assert [request.fencing_token for request in orchestrator.seen("Yield")] == [1]


def test_lost_answer_of_a_release_is_asked_for_again(orchestrator, connect):
    client = connect()
    client.acquire()
    orchestrator.fail_next("Yield", "UNAVAILABLE", "connection reset", after=True)
    assert client.release().success
    assert [request.fencing_token for request in orchestrator.seen("Yield")] == [1, 1]


def test_lease_ended_behind_a_broken_connection_is_lost(orchestrator, connect):
    client = connect()
    client.acquire()
    orchestrator.stop()
    orchestrator.groups["trainers"].lease = None
    orchestrator.hold("trainers", "b")
    orchestrator.start()
    orchestrator.wait_until(lambda: len(renewals(orchestrator)) >= 2)
    with pytest.raises(OrchestratorLeaseLostError):
        client.release()
    assert orchestrator.holder("trainers") == "b"


def test_grant_that_crossed_a_failed_acquire_is_given_back(orchestrator, connect):
    orchestrator.fail_next("Acquire", "INTERNAL", "lost on the way", after=True)
    with pytest.raises(OrchestratorInternalError):
        connect().acquire()
    orchestrator.wait_until(lambda: orchestrator.holder("trainers") is None)
    assert [request.fencing_token for request in orchestrator.seen("Yield")] == [1]


def test_client_that_could_not_renew_asks_before_it_despairs(orchestrator, connect, caplog):
    """The orchestrator may know from pings or an agent that the job lives: late renewals alone are no loss."""
    orchestrator.ttl_ms = 150
    client = connect()
    with caplog.at_level(logging.WARNING, "timeslice"):
        client.acquire()
        orchestrator.answers_renewals = False
        wait_for_log(caplog, "its leases may be over")
    assert client.release().success


def test_expired_by_the_own_clock_and_unreachable_is_lost(orchestrator, connect):
    orchestrator.ttl_ms = 100
    client = connect(unreachable_timeout_s=0.5)
    client.acquire()
    orchestrator.stop()
    with pytest.raises(OrchestratorLeaseLostError, match="within its time to live"):
        client.release()


def test_unreachable_within_the_time_to_live_is_a_connection_error(orchestrator, connect):
    client = connect(unreachable_timeout_s=0.2)
    client.acquire()
    orchestrator.stop()
    with pytest.raises(OrchestratorConnectionError):
        client.release()
    orchestrator.start()
    client.release()
    assert orchestrator.holder("trainers") is None


def wait_for_token(face, client, token: int) -> None:
    """Until the client has entered a notice in its book."""
    face.wait_until(client, lambda: client._engine.core.book.token(("a", "trainers")) == token)


def wait_for_log(caplog, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in caplog.text:
        assert time.monotonic() < deadline, caplog.text
        os.sched_yield()


# With processes of their own.

WAIT = """
client = TimeSliceOrchestratorClient({address!r}, "a", "trainers")
await client.acquire()
"""


INTERRUPTED_IN_THE_LOOP = """
import asyncio, os, signal
asyncio.get_running_loop().add_reader(0, lambda: (os.read(0, 1), os.kill(os.getpid(), signal.SIGINT)))
"""


def run(face, body: str, orchestrator, **kwargs) -> subprocess.Popen[str]:
    if face.name == "aio":
        body = INTERRUPTED_IN_THE_LOOP + body
    command = [sys.executable, "-W", "error", "-c", face.script(body.format(address=orchestrator.address))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True, **kwargs)


def interrupt(face, process: subprocess.Popen[str]) -> None:
    """Ctrl-C. On Python 3.10 it is raised in whatever code asyncio runs just then; a callback of grpc's swallows it. So
    a program of the asyncio client gets it while a callback of its own runs."""
    if face.name == "aio":
        process.stdin.write(".")
        process.stdin.flush()
    else:
        process.send_signal(signal.SIGINT)


def test_interrupt_of_a_waiting_process_leaves_the_queue(orchestrator, face):
    orchestrator.hold("trainers")
    with run(face, WAIT, orchestrator) as process:
        orchestrator.wait_until(lambda: len(orchestrator.groups["trainers"].waiting) == 1)
        interrupt(face, process)
        assert process.wait(20) == -signal.SIGINT
        assert "KeyboardInterrupt" in process.stderr.read()
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting == [])


INTERRUPTED_IN_THE_BLOCK = """
import asyncio, signal, time
client = TimeSliceOrchestratorClient({address!r}, "a", "trainers")
async with client.on_accelerators():
    print("in the block", flush=True)
    await SLEEP(60)
"""


def test_interrupt_of_a_process_that_holds_the_group_gives_it_back(orchestrator, face):
    body = INTERRUPTED_IN_THE_BLOCK.replace("SLEEP", "asyncio.sleep" if face.name == "aio" else "time.sleep")
    with run(face, body, orchestrator, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "in the block\n"
        interrupt(face, process)
        assert process.wait(20) == -signal.SIGINT
        errors = process.stderr.read()
    # It was given back in order, not by the end of all; but before 3.11 asyncio.run cancels all tasks at once, the
    # session's among them.
    assert "giving it back" not in errors or (face.name == "aio" and sys.version_info < (3, 11))
    assert orchestrator.holder("trainers") is None


INTERRUPTED_AND_GOES_ON = """
from timeslice import TimeSliceOrchestratorClient
client = TimeSliceOrchestratorClient({address!r}, "a", "trainers")
try:
    client.acquire()
except KeyboardInterrupt as err:
    kept = err  # as an interactive shell keeps it, with all frames
    print("interrupted", flush=True)
    import sys; sys.stdin.read()
"""


def test_interrupted_acquire_leaves_the_queue_though_the_process_lives_on(orchestrator):
    orchestrator.hold("trainers")
    command = [sys.executable, "-c", INTERRUPTED_AND_GOES_ON.format(address=orchestrator.address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        orchestrator.wait_until(lambda: len(orchestrator.groups["trainers"].waiting) == 1)
        process.send_signal(signal.SIGINT)
        orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting == [])
        assert process.stdout.readline() == b"interrupted\n"
        assert process.poll() is None


@pytest.mark.parametrize("face", [SyncFace], indirect=True)
def test_interrupt_while_the_call_is_begun_leaves_the_queue_too(orchestrator, connect):
    """Who keeps the exception, as a notebook does, keeps the call: it must be cancelled, not only forgotten."""
    orchestrator.hold("trainers")
    client = connect()
    client.list_groups()
    real = client._engine.stub.Acquire

    class InterruptedInTheMiddle:
        def future(self, request, timeout):
            pending = real.future(request, timeout=timeout)
            orchestrator.wait_until(lambda: len(orchestrator.groups["trainers"].waiting) == 1)
            signal.raise_signal(signal.SIGINT)
            return pending

    client._engine.stub.Acquire = InterruptedInTheMiddle()
    with pytest.raises(KeyboardInterrupt) as kept:
        client.acquire()
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting == [])
    assert kept.tb
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_process_that_ends_without_close_gives_back_what_it_holds(orchestrator, face):
    with run(face, WAIT, orchestrator) as process:
        assert process.wait(20) == 0
        assert process.stderr.read() == "client closed while job a holds group trainers: giving it back\n"
    assert orchestrator.holder("trainers") is None
    orchestrator.wait_until(lambda: orchestrator.session_of("a").streams == 0)


def test_closed_client_says_so(connect):
    client = connect()
    client.close()
    for call in (client.acquire, client.release, client.get_status, client.list_groups):
        with pytest.raises(OrchestratorError, match="was closed"):
            call()


def test_default_address_is_the_socket_of_this_user(short_dir, face, monkeypatch):
    monkeypatch.setenv("TIMESLICE_RUNTIME_DIR", str(short_dir))
    with face.orchestrator() as client:
        assert client.target == f"unix:{short_dir}/orchestrator.sock"
    Path(short_dir).chmod(0o777)
    with pytest.raises(ValueError, match="others may write"):
        face.orchestrator()
    Path(short_dir).chmod(0o700)
