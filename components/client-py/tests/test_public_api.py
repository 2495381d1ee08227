"""The surface that users have in their code: names, parameters in order, defaults, results, exceptions."""

import dataclasses
import enum
import importlib
import inspect
import subprocess
import sys

import grpc
import pytest

import timeslice
import timeslice.orchestrator
import timeslice.orchestrator._generated
import timeslice.orchestrator.client
import timeslice.orchestrator.exceptions as exceptions
import timeslice.orchestrator.types as types
import timeslice.snapshot_agent
import timeslice.snapshot_agent.client
import timeslice.snapshot_agent.types
import timeslice.snapshot_agent.workload


def parameters(function) -> dict[str, object]:
    """Positional parameters and their defaults, in order; `...` where there is none."""
    return {
        p.name: ... if p.default is p.empty else p.default
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"
    }


def test_names_of_the_package():
    assert timeslice.__all__ == ["SnapshotAgentClient", "TimeSliceOrchestratorClient"]
    for name in timeslice.__all__:
        assert name in dir(timeslice)
    assert timeslice.TimeSliceOrchestratorClient is timeslice.orchestrator.client.TimeSliceOrchestratorClient
    assert timeslice.orchestrator.TimeSliceOrchestratorClient is timeslice.TimeSliceOrchestratorClient
    assert timeslice.snapshot_agent.__all__ == ["SnapshotAgentClient", "WorkloadHandle", "register_workload"]
    for name in timeslice.snapshot_agent.__all__:
        assert getattr(timeslice.snapshot_agent, name)
    with pytest.raises(AttributeError):
        _ = timeslice.nothing


OPTIONAL_IDS = {"job_id": None, "group_id": None, "timeout_sec": None}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__init__", {"target": None, "job_id": None, "group_id": None, "channel_options": None}),
        ("acquire", OPTIONAL_IDS),
        ("release", OPTIONAL_IDS),
        ("on_accelerators", OPTIONAL_IDS),
        ("get_status", {"group_id": None, "timeout_sec": None}),
        ("list_groups", {"timeout_sec": None}),
        ("close", {}),
    ],
)
def test_parameters_of_the_orchestrators_client(name, expected):
    found = parameters(getattr(timeslice.TimeSliceOrchestratorClient, name))
    assert list(found.items()) == list(expected.items())


def test_attributes_of_the_orchestrators_client():
    with timeslice.TimeSliceOrchestratorClient("localhost:1", "a", "g") as client:
        assert (client.target, client.job_id, client.group_id) == ("localhost:1", "a", "g")
    assert isinstance(timeslice.orchestrator.client.DEFAULT_SERVICE_CONFIG, str)
    assert dict(timeslice.orchestrator.client.DEFAULT_CHANNEL_OPTIONS)["grpc.service_config"]


@pytest.mark.parametrize(
    ("module", "name", "fields"),
    [
        (types, "AcquireResult", ["success", "waited_ms", "context_restored"]),
        (types, "YieldResult", ["success", "pending_waiters", "snapshot_deferred"]),
        (types, "SnapshotAgentJobState", ["agent", "job_id", "job_state"]),
        (
            types,
            "GroupStatus",
            [
                "group_id",
                "group_state",
                "state_timestamp",
                "locking_job",
                "active_job",
                "waiter_queue_depth",
                "loaded_job",
            ],
        ),
        (types, "OrchestratorGroupStatus", ["group", "agent_job_states"]),
        (timeslice.snapshot_agent.types, "SnapshotResponse", ["operation_id"]),
        (timeslice.snapshot_agent.types, "RestoreResponse", ["operation_id"]),
        (timeslice.snapshot_agent.types, "HealthResponse", ["status"]),
        (
            timeslice.snapshot_agent.types,
            "GetOperationResponse",
            ["status", "elapsed_ms", "storage_bytes", "snapshot_device_bytes", "error"],
        ),
        (timeslice.snapshot_agent.types, "JobStatus", ["job_id", "state"]),
        (timeslice.snapshot_agent.types, "AcceleratorStatus", ["id", "memory_used_bytes", "memory_total_bytes"]),
        (timeslice.snapshot_agent.types, "StatusResponse", ["job_statuses", "accelerator_statuses"]),
    ],
)
def test_results_are_frozen_dataclasses(module, name, fields):
    cls = getattr(module, name)
    assert [f.name for f in dataclasses.fields(cls)] == fields
    assert cls.__dataclass_params__.frozen


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (types.GroupLockState, "UNSPECIFIED UNKNOWN IDLE IDLE_YIELDED LOCKED SWITCHING"),
        (types.AgentJobState, "UNSPECIFIED IDLE RUNNING TRANSITIONING SAVED FAULTED"),
    ],
)
def test_states_are_string_enums(cls, names):
    assert issubclass(cls, (str, enum.Enum))
    assert {member.name: member.value for member in cls} == {name: name for name in names.split()}
    assert cls.IDLE == "IDLE"


class RpcError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "what the server said"


SPECIAL = {
    "UNAVAILABLE": exceptions.OrchestratorConnectionError,
    "DEADLINE_EXCEEDED": exceptions.OrchestratorTimeoutError,
    "INVALID_ARGUMENT": exceptions.OrchestratorInvalidArgumentError,
    "INTERNAL": exceptions.OrchestratorInternalError,
    "UNKNOWN": exceptions.OrchestratorInternalError,
}


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_has_its_exception(code):
    error = exceptions.wrap_grpc_error(RpcError(code))
    assert type(error) is SPECIAL.get(code.name, exceptions.OrchestratorError)
    assert isinstance(error, exceptions.OrchestratorError)
    assert error.code == code.name
    assert "what the server said" in str(error)


def test_lost_lease_is_an_orchestrator_error_with_its_facts():
    error = exceptions.OrchestratorLeaseLostError("a", "g", 7, "evicted")
    assert isinstance(error, exceptions.OrchestratorError)
    assert (error.job_id, error.group_id, error.fencing_token, error.reason) == ("a", "g", 7, "evicted")
    assert "lease 7 of job 'a' on group 'g' was lost: evicted" in str(error)


CONFIG = {"job_id": ..., "group": "", "backend_config": None}
CONFIG_AND_WAIT = {"job_id": ..., "group": "", "poll_interval_sec": 1.0, "backend_config": None}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__init__", {"endpoint": None, "channel": None}),
        ("snapshot", CONFIG),
        ("restore", CONFIG),
        ("get_operation", {"operation_id": ...}),
        ("status", {}),
        ("wait_for_operation", {"operation_id": ..., "poll_interval_sec": 1.0}),
        ("snapshot_and_wait", CONFIG_AND_WAIT),
        ("restore_and_wait", CONFIG_AND_WAIT),
    ],
)
def test_parameters_of_the_agents_client(name, expected):
    found = parameters(getattr(timeslice.SnapshotAgentClient, name))
    assert list(found.items()) == list(expected.items())


def test_parameters_of_register_workload():
    assert parameters(timeslice.snapshot_agent.register_workload) == {
        "agent": ...,
        "job_id": ...,
        "group": "",
        "workload": None,
        "on_snapshot": None,
        "on_restore": None,
        "supported_modes": None,
        "default_mode": None,
        "tags": None,
    }
    assert parameters(timeslice.snapshot_agent.WorkloadHandle.close) == {"timeout": 5.0}
    error = timeslice.snapshot_agent.client.SnapshotAgentError("text", grpc.StatusCode.ABORTED, "details")
    assert (str(error), error.code, error.details) == ("text", grpc.StatusCode.ABORTED, "details")


def test_generated_modules_are_where_existing_code_looks():
    generated = importlib.import_module("timeslice.orchestrator._generated")
    assert generated.pb2.AcquireRequest(job_id="a").job_id == "a"
    assert generated.pb2_grpc.TimeSliceOrchestratorServiceStub


def test_import_of_the_package_brings_nothing_heavy():
    script = (
        "import sys, timeslice\n"
        "import timeslice.orchestrator.types, timeslice.orchestrator.exceptions\n"
        "heavy = [m for m in ('grpc', 'google.protobuf', 'asyncio') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
