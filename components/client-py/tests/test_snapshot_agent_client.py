"""What a tool sees of a node's agent."""

import asyncio

import grpc
import grpc.aio
import pytest

import timeslice.aio
from fake_agent import FakeAgent
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice.snapshot_agent.client import SnapshotAgentError
from timeslice.snapshot_agent.types import AcceleratorStatus, HealthResponse, JobStatus


@pytest.fixture
def agent(short_dir):
    server = FakeAgent(f"unix:{short_dir}/a.sock")
    server.states["a"] = pb2.JOB_STATE_RUNNING
    server.start()
    yield server
    server.stop()


def test_job_is_saved_and_restored(agent, face):
    agent.polls_until_end = 3
    with face.agent(agent.address) as client:
        saved = client.snapshot_and_wait("a")
        assert (saved.status, saved.elapsed_ms) == ("OPERATION_STATUS_COMPLETE", 7)
        assert (saved.snapshot_device_bytes, saved.storage_bytes, saved.error) == (1024, None, None)
        assert client.status().job_statuses == [JobStatus("a", "JOB_STATE_SAVED")]
        client.restore_and_wait("a")
        assert client.status().job_statuses == [JobStatus("a", "JOB_STATE_RUNNING")]
        assert client.status().accelerator_statuses == [AcceleratorStatus("GPU-1", 5, 9)]


def test_refusal_carries_code_and_text(agent, face):
    with face.agent(agent.address) as client, pytest.raises(SnapshotAgentError, match="'b' is not") as caught:
        client.snapshot("b")
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details == "job 'b' is not JOB_STATE_RUNNING"


def test_given_channel_is_left_open(agent, face):
    with face.channel(agent.address) as channel:
        with face.agent(channel=channel) as client:
            client.status()
        assert face.agent(channel=channel).status().accelerator_statuses


def test_given_channel_that_its_owner_closes_is_an_error(agent, face):
    with face.channel(agent.address) as channel:
        client = face.agent(channel=channel)
        client.status()
    with pytest.raises((SnapshotAgentError, ValueError, grpc.aio.UsageError)):
        client.status()


def test_health_is_told(agent, face):
    with face.agent(agent.address) as client:
        assert client.check_health() == HealthResponse("SERVING")
        agent.health.enter_graceful_shutdown()
        assert client.check_health().status == "NOT_SERVING"
        with pytest.raises(SnapshotAgentError) as caught:
            client.check_health("no.such.Service")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_closed_client_ends_what_is_under_way_and_says_so(agent, face, background):
    agent.polls_until_end = 1_000_000
    client = face.agent(agent.address)
    waiting = background(client.snapshot_and_wait, "a", poll_interval_sec=0.02)
    agent.wait_until(lambda: bool(agent._operations))
    client.close()
    with pytest.raises(SnapshotAgentError, match="was closed"):
        waiting.result()


async def test_client_of_another_event_loop_says_so(agent):
    client = timeslice.aio.SnapshotAgentClient(agent.address)
    await client.status()
    await asyncio.to_thread(_use_on_a_loop_of_its_own, client)
    await client.close()


def _use_on_a_loop_of_its_own(client):
    with pytest.raises(SnapshotAgentError, match="belongs to another event loop"):
        asyncio.run(client.status())


def test_missing_agent_is_named(short_dir, face):
    with face.agent(f"unix:{short_dir}/none.sock") as client:
        with pytest.raises(SnapshotAgentError, match=r"no snapshot agent answers at unix:.*none\.sock"):
            client.status()


def test_neither_endpoint_nor_channel_is_a_value_error(face):
    with pytest.raises(ValueError, match="endpoint"):
        face.agent()
