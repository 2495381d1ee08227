"""The whole API that users of llm-d's Python package have in their code, as a table; ours has it all and may have more.

A line that starts at the margin is a module. Below it:

    NAME(PARAMETERS)              a function or a class; a parameter with a default has the same one here
        .NAME(PARAMETERS)         a method; a static fact of a class is written .NAME
    result NAME(FIELDS)           a frozen dataclass: the same fields in the same order
    enum NAME: MEMBERS            a string enum whose values are its names
    error NAME(BASE): CODES       an exception, its base class, and the gRPC codes that become it
    NAME                          anything else

What ours has beyond the table is keyword-only, so that no call that is right there means something else here.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

API = """
timeslice
    SnapshotAgentClient
    TimeSliceOrchestratorClient

timeslice.orchestrator
    TimeSliceOrchestratorClient
    AcquireResult
    AgentJobState
    GroupLockState
    GroupStatus
    OrchestratorConnectionError
    OrchestratorError
    OrchestratorGroupStatus
    OrchestratorInternalError
    OrchestratorInvalidArgumentError
    OrchestratorTimeoutError
    SnapshotAgentJobState
    YieldResult

timeslice.orchestrator.client
    DEFAULT_CHANNEL_OPTIONS
    DEFAULT_SERVICE_CONFIG
    TimeSliceOrchestratorClient(target, job_id=None, group_id=None, channel_options=None)
        .acquire(job_id=None, group_id=None, timeout_sec=None)
        .release(job_id=None, group_id=None, timeout_sec=None)
        .get_status(group_id=None, timeout_sec=None)
        .list_groups(timeout_sec=None)
        .on_accelerators(job_id=None, group_id=None, timeout_sec=None)
        .close()
        .__enter__()
        .__exit__

timeslice.orchestrator.types
    result AcquireResult(success, waited_ms, context_restored)
    result YieldResult(success, pending_waiters, snapshot_deferred)
    result SnapshotAgentJobState(agent, job_id, job_state)
    result GroupStatus(group_id, group_state, state_timestamp, locking_job, active_job, waiter_queue_depth, loaded_job)
    result OrchestratorGroupStatus(group, agent_job_states)
    enum GroupLockState: UNSPECIFIED UNKNOWN IDLE IDLE_YIELDED LOCKED SWITCHING
    enum AgentJobState: UNSPECIFIED IDLE RUNNING TRANSITIONING SAVED FAULTED

timeslice.orchestrator.exceptions
    error OrchestratorError(Exception):
    error OrchestratorConnectionError(OrchestratorError): UNAVAILABLE
    error OrchestratorTimeoutError(OrchestratorError): DEADLINE_EXCEEDED
    error OrchestratorInvalidArgumentError(OrchestratorError): INVALID_ARGUMENT
    error OrchestratorInternalError(OrchestratorError): INTERNAL UNKNOWN
    wrap_grpc_error(error)

timeslice.orchestrator._generated
    pb2
    pb2_grpc

timeslice.snapshot_agent
    SnapshotAgentClient
    WorkloadHandle
    register_workload

timeslice.snapshot_agent.client
    SnapshotAgentError(message, code=None, details=None)
    SnapshotAgentInterface
        .snapshot(job_id, group='', backend_config=None)
        .restore(job_id, group='', backend_config=None)
        .get_operation(operation_id)
        .status()
        .check_health(service='')
    SnapshotAgentClient(endpoint=None, channel=None)
        .snapshot(job_id, group='', backend_config=None)
        .restore(job_id, group='', backend_config=None)
        .get_operation(operation_id)
        .status()
        .check_health(service='')
        .wait_for_operation(operation_id, poll_interval_sec=1.0)
        .snapshot_and_wait(job_id, group='', poll_interval_sec=1.0, backend_config=None)
        .restore_and_wait(job_id, group='', poll_interval_sec=1.0, backend_config=None)
        .close()
        .__enter__()
        .__exit__

timeslice.snapshot_agent.types
    result SnapshotResponse(operation_id)
    result RestoreResponse(operation_id)
    result HealthResponse(status)
    result GetOperationResponse(status, elapsed_ms, storage_bytes=None, snapshot_device_bytes=None, error=None)
    result JobStatus(job_id, state)
    result AcceleratorStatus(id, memory_used_bytes, memory_total_bytes)
    result StatusResponse(job_statuses, accelerator_statuses)

timeslice.snapshot_agent.workload
    register_workload(agent, job_id, group='', workload=None, on_snapshot=None, on_restore=None, supported_modes=None, default_mode=None, tags=None)
    WorkloadHandle
        .close(timeout=5.0)

timeslice.snapshot_agent.adapters
    resolve_adapter(workload, on_snapshot, on_restore)
    mode_from_name(name)
    mode_name(mode)
    WorkloadAdapter
        .snapshot(mode, tags)
        .restore(tags)
        .name
        .supported_modes
        .default_mode
        .tags
    CallbackAdapter(on_snapshot, on_restore)
    SnapshottableAdapter(obj)
    VLLMAdapter(engine)

timeslice.snapshot_agent.snapshot_agent_pb2
    BackendConfig
timeslice.snapshot_agent.snapshot_agent_pb2_grpc
    SnapshotAgentServiceStub
    SnapshotAgentServiceServicer
timeslice.snapshot_agent.health_pb2
    HealthCheckRequest
timeslice.snapshot_agent.health_pb2_grpc
    HealthStub
"""  # noqa: E501

LINE = re.compile(r"(?:(result|enum|error) )?(\.?\w+)(?:\((.*)\))?(?::(.*))?")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of the table."""

    module: str
    owner: str
    """The class that a method belongs to."""
    kind: str
    name: str
    parameters: str | None
    rest: str

    def __str__(self) -> str:
        return ".".join(filter(None, [self.module, self.owner, self.name]))

    def find(self) -> Any:
        found = importlib.import_module(self.module)
        for name in filter(None, [self.owner, self.name]):
            found = getattr(found, name)
        return found


def entries() -> Iterator[Entry]:
    module = owner = ""
    for line in filter(None, API.splitlines()):
        if not line.startswith(" "):
            module = line
            continue
        parts = LINE.fullmatch(line.strip())
        assert parts, line
        kind, name, parameters, rest = parts.groups()
        is_method = name.startswith(".")
        if not is_method:
            owner = name
        yield Entry(module, owner if is_method else "", kind or "", name.lstrip("."), parameters, (rest or "").strip())


TABLE = list(entries())


def of_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", [e for e in TABLE if e.kind == kind], ids=str)


@pytest.mark.parametrize("entry", TABLE, ids=str)
def test_every_name_is_there(entry: Entry) -> None:
    assert entry.find() is not None


@pytest.mark.parametrize("entry", [e for e in TABLE if e.kind == "" and e.parameters is not None], ids=str)
def test_parameters_are_the_same(entry: Entry) -> None:
    """Same names, order and defaults; what they must give, ours may know by itself; what ours adds is keyword-only."""
    expected = [p.strip() for p in (entry.parameters or "").split(",") if p.strip()]
    found = [p for p in inspect.signature(entry.find()).parameters.values() if p.name != "self"]
    ours = [p for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours] == [p.partition("=")[0] for p in expected]
    for parameter, (name, equals, default) in zip(ours, (p.partition("=") for p in expected), strict=True):
        if equals:
            assert repr(parameter.default) == default, name
    more = [p for p in found if p.kind is not p.POSITIONAL_OR_KEYWORD]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more), more


@of_kind("result")
def test_results_are_the_same_frozen_dataclasses(entry: Entry) -> None:
    cls = entry.find()
    assert cls.__dataclass_params__.frozen
    defaults = {f.name: "" if f.default is dataclasses.MISSING else f"={f.default!r}" for f in dataclasses.fields(cls)}
    assert ", ".join(name + default for name, default in defaults.items()) == entry.parameters


@of_kind("enum")
def test_enums_are_strings_with_the_same_members(entry: Entry) -> None:
    cls = entry.find()
    assert issubclass(cls, str)
    assert issubclass(cls, enum.Enum)
    assert {m.name: m.value for m in cls} == {name: name for name in entry.rest.split()}


@of_kind("error")
def test_exceptions_have_the_same_base(entry: Entry) -> None:
    assert [base.__name__ for base in entry.find().__bases__] == [entry.parameters]


class RpcError(grpc.RpcError):
    """As a stub raises it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "what the server said"


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_grpc_code_becomes_the_same_exception(code: grpc.StatusCode) -> None:
    exceptions = importlib.import_module("timeslice.orchestrator.exceptions")
    named = [e.name for e in TABLE if e.kind == "error" and code.name in e.rest.split()]
    error = exceptions.wrap_grpc_error(RpcError(code))
    assert type(error).__name__ == (named[0] if named else "OrchestratorError")
    assert "what the server said" in str(error)


def test_ids_are_taken_from_the_constructor_and_missing_ones_are_a_value_error() -> None:
    client_class = importlib.import_module("timeslice").TimeSliceOrchestratorClient
    with client_class("localhost:1", "a", "g") as client:
        assert (client.target, client.job_id, client.group_id) == ("localhost:1", "a", "g")
    with client_class("localhost:1") as client:
        for call in (client.acquire, client.release):
            with pytest.raises(ValueError, match="job_id"):
                call(group_id="g")
            with pytest.raises(ValueError, match="group_id"):
                call(job_id="a")
        with pytest.raises(ValueError, match="group_id"):
            client.get_status()


def test_agents_client_needs_an_endpoint_or_a_channel() -> None:
    client_class = importlib.import_module("timeslice").SnapshotAgentClient
    with pytest.raises(ValueError, match="endpoint"):
        client_class()
    with grpc.insecure_channel("localhost:1") as channel:
        assert client_class(channel=channel).channel is channel
    error = importlib.import_module("timeslice.snapshot_agent.client").SnapshotAgentError
    assert (str(error("text")), error("text").code, error("text").details) == ("text", None, None)


def test_workload_needs_a_job_id() -> None:
    with pytest.raises(ValueError, match="job_id"):
        importlib.import_module("timeslice.snapshot_agent").register_workload("localhost:1", "")


def test_modes_go_by_name_in_any_case() -> None:
    adapters = importlib.import_module("timeslice.snapshot_agent.adapters")
    pb2 = importlib.import_module("timeslice.snapshot_agent.snapshot_agent_pb2")
    for name, mode in (("offload", pb2.SUSPEND_MODE_OFFLOAD), ("discard", pb2.SUSPEND_MODE_DISCARD)):
        assert adapters.mode_from_name(name) == adapters.mode_from_name(name.upper()) == mode
        assert adapters.mode_name(mode) == name
    with pytest.raises(ValueError, match="nothing"):
        adapters.mode_from_name("nothing")
