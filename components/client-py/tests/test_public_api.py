"""The public surface that is ours, beyond what llm-d's package has (test_llmd_api.py): users see a change here."""

import dataclasses
import importlib
import inspect
import subprocess
import sys

import pytest

MODULES = {
    "timeslice": "SnapshotAgentClient TimeSliceOrchestratorClient",
    "timeslice.aio": "SnapshotAgentClient TimeSliceOrchestratorClient",
    "timeslice.orchestrator": "AcquireResult AgentJobState GroupLockState GroupStatus OrchestratorConnectionError"
    " OrchestratorError OrchestratorGroupStatus OrchestratorInternalError OrchestratorInvalidArgumentError"
    " OrchestratorTimeoutError SnapshotAgentJobState TimeSliceOrchestratorClient YieldResult",
    "timeslice.snapshot_agent": "SnapshotAgentClient WorkloadHandle register_workload",
}
"""What `from MODULE import *` brings."""

EXTRAS = {
    "timeslice.TimeSliceOrchestratorClient": "session_ttl_s connect_timeout_s unreachable_timeout_s wait_slice_s"
    " use_sessions on_revoke on_lost on_shared",
    "timeslice.aio.TimeSliceOrchestratorClient": "session_ttl_s connect_timeout_s unreachable_timeout_s wait_slice_s"
    " use_sessions on_revoke on_lost on_shared",
}
"""Parameters that llm-d's have not: by keyword only."""

RESULTS = {
    "RevokeNotice": "group_id job_id grace_s reason",
    "LostLease": "group_id job_id fencing_token reason will_resume",
    "SharedLease": "group_id job_id fencing_token attached is_owner other",
}


def find(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("module", "names"), MODULES.items())
def test_names_of_a_module(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert found.__all__ == names.split()
    assert all(getattr(found, name) is not None for name in found.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = found.nothing


def test_every_way_to_a_client_leads_to_the_same_class() -> None:
    for paths in (
        ("timeslice", "timeslice.orchestrator", "timeslice.orchestrator.client"),
        ("timeslice.aio",),
    ):
        assert len({find(f"{path}.TimeSliceOrchestratorClient") for path in paths}) == 1


@pytest.mark.parametrize(("path", "names"), EXTRAS.items())
def test_extra_parameters(path: str, names: str) -> None:
    found = inspect.signature(find(path)).parameters.values()
    assert [p.name for p in found if p.kind is p.KEYWORD_ONLY] == names.split()


@pytest.mark.parametrize("client", ["TimeSliceOrchestratorClient", "SnapshotAgentClient"])
def test_asyncio_twin_has_the_same_methods_and_takes_the_same(client: str) -> None:
    first, second = (methods(find(f"{module}.{client}")) for module in ("timeslice", "timeslice.aio"))
    assert len(first) > 6
    assert first == second


def methods(cls: type) -> dict[str, list[tuple[str, object, object]]]:
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("name", "fields"), RESULTS.items())
def test_what_callbacks_are_called_with(name: str, fields: str) -> None:
    cls = find(f"timeslice.orchestrator.types.{name}")
    assert [f.name for f in dataclasses.fields(cls)] == fields.split()
    assert cls.__dataclass_params__.frozen


def test_lost_lease_is_an_orchestrator_error_with_its_facts() -> None:
    exceptions = importlib.import_module("timeslice.orchestrator.exceptions")
    error = exceptions.OrchestratorLeaseLostError("a", "g", 7, "evicted")
    assert isinstance(error, exceptions.OrchestratorError)
    assert (error.job_id, error.group_id, error.fencing_token, error.reason) == ("a", "g", 7, "evicted")
    assert "lease 7 of job 'a' on group 'g' was lost: evicted" in str(error)


def modules_after(imports: str) -> set[str]:
    script = f"import {imports}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], check=True, stdout=subprocess.PIPE, text=True
    )
    return set(done.stdout.split())


def test_import_of_the_package_pulls_in_only_itself() -> None:
    """What it imports itself is what an interpreter needs for little else; `timeslice` alone costs next to nothing."""
    assert modules_after("timeslice, os, typing, __future__") - modules_after("os, typing, __future__") == {"timeslice"}


def test_types_and_exceptions_need_no_grpc() -> None:
    found = modules_after("timeslice.orchestrator.types, timeslice.orchestrator.exceptions, timeslice.aio")
    assert not found & {"grpc", "google.protobuf", "asyncio"}


def test_the_command_line_imports_nothing_before_it_knows_the_command() -> None:
    assert not modules_after("timeslice.cli.main") & {"grpc", "google.protobuf", "asyncio", "rich"}
