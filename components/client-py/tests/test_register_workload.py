"""What a job's controller sees of the agent: its processes accepted, refused, registered again after a restart."""

import logging
import os
import subprocess
import sys
import time

import grpc
import pytest

from fake_agent import FakeAgent
from timeslice._processes import start_time
from timeslice.snapshot_agent import register_workload
from timeslice.snapshot_agent.client import SnapshotAgentError


@pytest.fixture
def agent(short_dir):
    server = FakeAgent(f"unix:{short_dir}/a.sock")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def child():
    """A process of this user that lives until its input is closed."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("marks_acceptance", [True, False])
def test_registration_returns_when_the_agent_has_accepted(agent, child, marks_acceptance):
    agent.marks_acceptance = marks_acceptance
    handle = register_workload(agent.address, "a", "trainers", pids=[child.pid])
    [seen] = agent.registered
    assert (seen.job_id, seen.group, list(seen.pids)) == ("a", "trainers", [child.pid])
    handle.close()
    agent.wait_until(lambda: agent.channels == 0)


@pytest.mark.parametrize("marks_acceptance", [True, False])
def test_refusal_is_raised_with_the_agents_text(agent, child, marks_acceptance):
    agent.marks_acceptance = marks_acceptance
    for _ in range(20):  # The end of a refused call must never be taken for an acceptance.
        agent.refusals.append((grpc.StatusCode.ALREADY_EXISTS, f"process {child.pid} belongs to job 'b'"))
        with pytest.raises(SnapshotAgentError, match="belongs to job 'b'") as caught:
            register_workload(agent.address, "a", pids=[child.pid])
        assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
        assert caught.value.details == f"process {child.pid} belongs to job 'b'"
    assert agent.registered == []


def test_agent_that_restarts_is_registered_with_again(agent, child, monkeypatch, caplog):
    monkeypatch.setattr("timeslice.snapshot_agent.workload.FIRST_BACKOFF_S", 0.01)
    handle = register_workload(agent.address, "a", pids=[child.pid])
    with caplog.at_level(logging.WARNING, "timeslice"):
        agent.stop()
        agent.start()
        agent.wait_until(lambda: len(agent.registered) == 2)
    assert list(agent.registered[1].pids) == [child.pid]
    assert "let go of job a" in caplog.text
    handle.close()


def test_processes_that_have_ended_are_not_registered_again(agent, child, monkeypatch):
    monkeypatch.setattr("timeslice.snapshot_agent.workload.FIRST_BACKOFF_S", 0.01)
    handle = register_workload(agent.address, "a", pids=[child.pid, os.getpid()])
    child.kill()
    child.wait()
    agent.stop()
    agent.start()
    agent.wait_until(lambda: len(agent.registered) == 2)
    assert list(agent.registered[1].pids) == [os.getpid()]
    handle.close()


def test_session_attests_the_processes_registered_for_its_job(agent, child, orchestrator, connect):
    client = connect("a")
    client.acquire()
    session = orchestrator.session_of("a")
    assert [p.pid for p in session.requests[0][1].processes] == [os.getpid()]
    handle = register_workload(agent.address, "a", "trainers", pids=[child.pid])
    orchestrator.wait_until(lambda: len(session.requests) == 2)
    processes = session.requests[1][1].processes
    assert [(p.pid, p.start_time) for p in processes] == [(pid, start_time(pid)) for pid in (os.getpid(), child.pid)]
    handle.close()


def test_no_agent_is_said_quickly_with_the_address_and_what_to_do(short_dir, monkeypatch):
    monkeypatch.setattr("timeslice.snapshot_agent.workload.CONNECT_TIMEOUT_S", 0.2)
    started = time.monotonic()
    with pytest.raises(SnapshotAgentError, match=f"no snapshot agent answers at unix:{short_dir}/none.sock") as caught:
        register_workload(f"unix:{short_dir}/none.sock", "a", pids=[os.getpid()])
    assert time.monotonic() - started < 3
    assert "timeslice up" in str(caught.value)


def test_agents_address_comes_from_the_environment(agent, monkeypatch):
    monkeypatch.setenv("TIMESLICE_AGENT_ADDR", agent.address)
    register_workload(None, "a", pids=[os.getpid()]).close()
    assert len(agent.registered) == 1


def test_processes_that_do_not_exist_are_refused_before_the_agent_is_asked(agent):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ValueError, match=f"no process {process.pid}"):
        register_workload(agent.address, "a", pids=[process.pid])
    assert agent.registered == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"job_id": "", "pids": [1]}, ValueError),
        ({"job_id": "a"}, ValueError),
        ({"job_id": "a", "pids": []}, ValueError),
        ({"job_id": "a", "on_snapshot": print}, ValueError),
        ({"job_id": "a", "workload": object(), "on_snapshot": print, "on_restore": print}, ValueError),
        ({"job_id": "a", "workload": object(), "pids": [1]}, TypeError),
        ({"job_id": "a", "on_snapshot": print, "on_restore": print, "default_mode": "neither"}, ValueError),
        ({"job_id": "a", "on_snapshot": print, "on_restore": print, "supported_modes": ["neither"]}, ValueError),
        (
            {
                "job_id": "a",
                "on_snapshot": print,
                "on_restore": print,
                "supported_modes": ["offload"],
                "default_mode": "discard",
            },
            ValueError,
        ),
        ({"job_id": "a", "pids": [1], "tags": ["weights"]}, ValueError),
    ],
)
def test_what_cannot_be_registered_is_said_at_once(arguments, error):
    with pytest.raises(error):
        register_workload("unix:/nowhere.sock", **arguments)
