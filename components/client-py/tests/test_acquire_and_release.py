"""What a job sees of the orchestrator: groups taken, waited for, given back, refused."""

import datetime
import logging
import time

import pytest

from timeslice.orchestrator.exceptions import (
    OrchestratorConnectionError,
    OrchestratorError,
    OrchestratorInvalidArgumentError,
    OrchestratorTimeoutError,
)
from timeslice.orchestrator.types import AcquireResult, AgentJobState, GroupLockState


def test_free_group_is_granted_and_given_back_with_its_token(orchestrator, connect):
    client = connect()
    result = client.acquire()
    assert (result.success, result.context_restored) == (True, False)
    assert orchestrator.holder("trainers") == "a"
    assert client.release().snapshot_deferred is True
    assert orchestrator.holder("trainers") is None
    [request] = orchestrator.seen("Yield")
    assert request.fencing_token == 1
    assert request.session_id in orchestrator.sessions


def test_what_was_dropped_is_told_beside_the_result(orchestrator, connect):
    client = connect()
    orchestrator.discarded_tags = ["weights", "kv_cache"]
    with client.on_accelerators() as turn:
        assert turn.discarded_tags == ("weights", "kv_cache")
        assert turn == AcquireResult(True, turn.waited_ms, False)
    orchestrator.discarded_tags = []
    assert client.acquire().discarded_tags == ()
    assert AcquireResult(True, 0, True).discarded_tags == ()


def test_second_job_waits_until_the_first_yields(orchestrator, connect, background):
    first, second = connect("a"), connect("b")
    first.acquire()
    waiting = background(second.acquire)
    orchestrator.wait_until(lambda: len(orchestrator.groups["trainers"].waiting) == 1)
    assert first.release().pending_waiters == 0  # the fake grants before it counts
    assert waiting.result().success
    assert orchestrator.holder("trainers") == "b"


def test_acquire_past_its_time_leaves_the_queue(orchestrator, connect):
    orchestrator.hold("trainers")
    with pytest.raises(OrchestratorTimeoutError, match=r"'trainers' for job 'a' did not end within 0\.2 s"):
        connect().acquire(timeout_sec=0.2)
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting == [])


def test_acquire_is_asked_in_slices_under_one_request_id(orchestrator, connect, background):
    orchestrator.hold("trainers")
    client = connect(wait_slice_s=0.05)
    waiting = background(client.acquire)
    orchestrator.wait_until(lambda: len(orchestrator.seen("Acquire")) >= 3)
    orchestrator.free("trainers")
    assert waiting.result().success
    requests = orchestrator.seen("Acquire")
    assert len({r.request_id for r in requests}) == 1
    assert requests[0].request_id
    assert {r.wait_ms for r in requests} == {50}


def test_group_held_by_on_accelerators_is_given_back_when_the_block_raises(orchestrator, connect):
    client = connect()

    def phase() -> None:
        with client.on_accelerators() as result:
            assert result.success
            assert orchestrator.holder("trainers") == "a"
            raise KeyError("in the block")

    with pytest.raises(KeyError):
        phase()
    assert orchestrator.holder("trainers") is None


def test_decorator_holds_the_group_around_every_call(orchestrator, connect, face):
    client = connect()
    holders = []

    @client.on_accelerators(group_id="samplers")
    @face.function
    def phase(number: int) -> int:
        holders.append(orchestrator.holder("samplers"))
        return number + 1

    assert [phase(1), phase(2)] == [2, 3]
    assert holders == ["a", "a"]
    assert orchestrator.holder("samplers") is None
    assert orchestrator.groups["samplers"].last_token == 2


@pytest.mark.parametrize("group_ids", [[], ["trainers", "samplers"]])
def test_several_groups_are_refused_at_once_with_what_to_do(orchestrator, connect, group_ids):
    client = connect()
    assert client.on_accelerators(group_ids=None)
    with pytest.raises(NotImplementedError, match="nest one on_accelerators"):
        client.on_accelerators(group_ids=group_ids)
    assert orchestrator.calls == []


def test_interrupt_in_the_block_gives_the_group_back(orchestrator, connect, face):
    with pytest.raises(face.interrupt), connect().on_accelerators():
        raise face.interrupt
    assert orchestrator.holder("trainers") is None


def test_ids_of_the_call_go_before_those_of_the_client(orchestrator, connect):
    client = connect("a", "trainers")
    client.acquire("b", "samplers")
    assert orchestrator.holder("samplers") == "b"
    client.release("b", "samplers")
    assert orchestrator.holder("samplers") is None


@pytest.mark.parametrize(("job_id", "group_id", "missing"), [(None, "g", "job_id"), ("a", None, "group_id")])
def test_missing_id_is_a_value_error(connect, job_id, group_id, missing):
    client = connect(job_id, group_id)
    for method in (client.acquire, client.release):
        with pytest.raises(ValueError, match=f"{missing} is missing"):
            method()


def test_ids_and_address_come_from_the_environment(orchestrator, face, monkeypatch):
    monkeypatch.setenv("TIMESLICE_ORCH_ADDR", orchestrator.address)
    monkeypatch.setenv("TIMESLICE_JOB_ID", "from-env")
    monkeypatch.setenv("TIMESLICE_GROUP_ID", "samplers")
    with face.orchestrator() as client, client.on_accelerators():
        assert (client.target, client.job_id, client.group_id) == (orchestrator.address, "from-env", "samplers")
        assert orchestrator.holder("samplers") == "from-env"


def test_unknown_group_is_refused_with_the_servers_text(orchestrator, connect):
    with pytest.raises(OrchestratorError, match="unknown group 'nope'") as caught:
        connect().acquire(group_id="nope")
    assert caught.value.code == "NOT_FOUND"


def test_release_by_another_job_is_refused(orchestrator, connect):
    orchestrator.hold("trainers", "b")
    with pytest.raises(OrchestratorError, match="not the holder") as caught:
        connect("a").release()
    assert caught.value.code == "PERMISSION_DENIED"


def test_refused_session_is_the_callers_error_and_the_next_call_tries_anew(orchestrator, connect):
    orchestrator.fail_next("Session", "INVALID_ARGUMENT", "job_id is longer than 253 characters")
    client = connect()
    with pytest.raises(OrchestratorInvalidArgumentError, match="job_id is longer"):
        client.acquire()
    assert client.acquire().success


def test_status_and_groups(orchestrator, connect):
    client = connect()
    client.acquire()
    assert client.list_groups() == ["trainers", "samplers"]
    status = client.get_status()
    assert status.group.group_state is GroupLockState.LOCKED
    assert status.group.locking_job == "a"
    assert status.group.state_timestamp == datetime.datetime(2023, 11, 14, 22, 13, 20)
    [agent] = status.agent_job_states
    assert (agent.agent, agent.job_id, agent.job_state) == ("node", "a", AgentJobState.SAVED)


def test_server_without_extensions_is_asked_once_and_without_slices(orchestrator, connect, background):
    orchestrator.knows_sessions = False
    orchestrator.hold("trainers")
    client = connect(wait_slice_s=0.05)
    waiting = background(client.acquire, timeout_sec=10)
    orchestrator.wait_until(lambda: bool(orchestrator.seen("Acquire")))
    orchestrator.free("trainers")
    assert waiting.result().success
    [request] = orchestrator.seen("Acquire")
    assert (request.session_id, request.wait_ms) == ("", 0)
    client.release()
    assert orchestrator.holder("trainers") is None


def test_without_sessions_a_lease_outlives_the_client(orchestrator, connect):
    client = connect(use_sessions=False)
    client.acquire()
    client.close()
    assert orchestrator.holder("trainers") == "a"
    assert orchestrator.sessions == {}
    connect(use_sessions=False).release()
    assert orchestrator.holder("trainers") is None


def test_close_gives_back_what_is_held_and_ends_the_session(orchestrator, connect, face, caplog):
    client = connect()
    client.acquire()
    assert face.working() == ["timeslice session a"]
    session = orchestrator.session_of("a")
    with caplog.at_level(logging.WARNING, "timeslice"):
        client.close()
    assert orchestrator.holder("trainers") is None
    orchestrator.wait_until(lambda: session.streams == 0)
    assert "client closed while job a holds group trainers" in caplog.text
    assert face.working() == []
    client.close()
    with pytest.raises(OrchestratorError, match="closed"):
        client.acquire()


def test_close_ends_a_waiting_acquire_of_another_thread(orchestrator, connect, background):
    orchestrator.hold("trainers")
    client = connect()
    waiting = background(client.acquire)
    orchestrator.wait_until(lambda: len(orchestrator.groups["trainers"].waiting) == 1)
    client.close()
    with pytest.raises(OrchestratorError, match="closed"):
        waiting.result()
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting == [])


@pytest.mark.parametrize("call", ["acquire", "release", "get_status", "list_groups"])
def test_no_server_is_said_quickly_with_the_address_and_what_to_do(short_dir, face, call):
    address = f"unix:{short_dir}/nobody.sock"
    with face.orchestrator(address, "a", "g", connect_timeout_s=0.3) as client:
        started = time.monotonic()
        with pytest.raises(OrchestratorConnectionError) as caught:
            getattr(client, call)()
        assert time.monotonic() - started < 3
    text = str(caught.value)
    assert address in text
    assert "timeslice up" in text
    assert "TIMESLICE_ORCH_ADDR" in text


def test_timeout_below_the_connect_time_still_names_the_missing_server(short_dir, face):
    with face.orchestrator(f"unix:{short_dir}/nobody.sock", "a", "g") as client:
        with pytest.raises(OrchestratorConnectionError):
            client.acquire(timeout_sec=0.3)


@pytest.mark.parametrize(
    "address", ["nowhere", "host:", ":1", "host:99999", "http://host:1", "unix:", "unix:" + "x" * 100]
)
def test_wrong_address_is_a_value_error_that_names_it(face, address):
    with pytest.raises(ValueError, match=f"address '{address}'"):
        face.orchestrator(address)


@pytest.mark.parametrize("address", ["localhost:50051", "dns:///orchestrator:50051", "[::1]:1", "unix:///run/x.sock"])
def test_usual_addresses_are_taken(face, address):
    face.orchestrator(address).close()
