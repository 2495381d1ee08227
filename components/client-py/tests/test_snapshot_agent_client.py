"""What a tool sees of a node's agent."""

import grpc
import pytest

from fake_agent import FakeAgent
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice import SnapshotAgentClient
from timeslice.snapshot_agent.client import SnapshotAgentError
from timeslice.snapshot_agent.types import AcceleratorStatus, JobStatus


@pytest.fixture
def agent(short_dir):
    server = FakeAgent(f"unix:{short_dir}/a.sock")
    server.states["a"] = pb2.JOB_STATE_RUNNING
    server.start()
    yield server
    server.stop()


def test_job_is_saved_and_restored(agent):
    agent.polls_until_end = 3
    with SnapshotAgentClient(agent.address) as client:
        saved = client.snapshot_and_wait("a")
        assert (saved.status, saved.elapsed_ms) == ("OPERATION_STATUS_COMPLETE", 7)
        assert (saved.snapshot_device_bytes, saved.storage_bytes, saved.error) == (1024, None, None)
        assert client.status().job_statuses == [JobStatus("a", "JOB_STATE_SAVED")]
        client.restore_and_wait("a")
        assert client.status().job_statuses == [JobStatus("a", "JOB_STATE_RUNNING")]
        assert client.status().accelerator_statuses == [AcceleratorStatus("GPU-1", 5, 9)]


def test_refusal_carries_code_and_text(agent):
    with SnapshotAgentClient(agent.address) as client, pytest.raises(SnapshotAgentError, match="'b' is not") as caught:
        client.snapshot("b")
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details == "job 'b' is not JOB_STATE_RUNNING"


def test_given_channel_is_left_open(agent):
    with grpc.insecure_channel(agent.address) as channel:
        with SnapshotAgentClient(channel=channel) as client:
            client.status()
        assert SnapshotAgentClient(channel=channel).status().accelerator_statuses


def test_missing_agent_is_named(short_dir):
    with SnapshotAgentClient(f"unix:{short_dir}/none.sock") as client:
        with pytest.raises(SnapshotAgentError, match=r"no snapshot agent answers at unix:.*none\.sock"):
            client.status()


def test_neither_endpoint_nor_channel_is_a_value_error():
    with pytest.raises(ValueError, match="endpoint"):
        SnapshotAgentClient()
