"""The messages exist once: under the names of the wire contract, and under those that existing code imports."""

import importlib
import subprocess
import sys

import pytest

SAME = {
    "timeslice.snapshot_agent.snapshot_agent_pb2": "snapshot_agent.v1alpha1.snapshot_agent_pb2",
    "timeslice.snapshot_agent.snapshot_agent_pb2_grpc": "snapshot_agent.v1alpha1.snapshot_agent_pb2_grpc",
    "timeslice.snapshot_agent.health_pb2": "grpc_health.v1.health_pb2",
    "timeslice.snapshot_agent.health_pb2_grpc": "grpc_health.v1.health_pb2_grpc",
}


@pytest.mark.parametrize("first_is_ours", [True, False])
@pytest.mark.parametrize(("alias", "home"), SAME.items())
def test_both_names_are_one_module_whichever_is_imported_first(alias: str, home: str, first_is_ours: bool) -> None:
    names = (alias, home) if first_is_ours else (home, alias)
    package, _, name = alias.rpartition(".")
    run(
        f"import {names[0]}, {names[1]}, sys\n"
        f"from {package} import {name} as attribute\n"
        f"assert {alias} is {home} is attribute is sys.modules[{alias!r}]\n"
    )


def test_orchestrators_messages_are_those_of_the_contract() -> None:
    generated = importlib.import_module("timeslice.orchestrator._generated")
    assert generated.__all__ == ["pb2", "pb2_grpc"]
    assert generated.pb2 is importlib.import_module("timeslice_orchestrator.v1alpha1.orchestrator_pb2")
    assert generated.pb2_grpc is importlib.import_module("timeslice_orchestrator.v1alpha1.orchestrator_pb2_grpc")


def test_servers_and_client_share_one_process() -> None:
    """Two copies of one protobuf package in a process are a TypeError."""
    run(
        "import orchestrator.main, snapshot_agent_server.main\n"
        "import timeslice.orchestrator.client, timeslice.snapshot_agent.client, timeslice.snapshot_agent.workload\n"
        "import timeslice.orchestrator._generated\n"
        + "".join(f"import {name}\n" for name in SAME)
        + "from orchestrator.api import wire as orchestrators\n"
        "from snapshot_agent_server.api import messages as agents\n"
        "assert orchestrators.pb is timeslice.orchestrator._generated.pb2\n"
        "assert agents.pb is timeslice.snapshot_agent.snapshot_agent_pb2\n"
    )


def test_a_second_copy_of_the_messages_would_be_noticed() -> None:
    """What the test above relies on: protobuf refuses other messages under a name that it knows."""
    with pytest.raises(TypeError, match="duplicate"):
        run_here(
            "from google.protobuf import descriptor_pb2, descriptor_pool\n"
            "import snapshot_agent.v1alpha1.snapshot_agent_pb2 as pb2\n"
            "copy = descriptor_pb2.FileDescriptorProto()\n"
            "pb2.DESCRIPTOR.CopyToProto(copy)\n"
            "copy.name = 'snapshot_agent_copy.proto'\n"
            "descriptor_pool.Default().AddSerializedFile(copy.SerializeToString())\n"
        )


def run(script: str) -> None:
    """In a process of its own: what is imported there, and in which order, is the script's alone."""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def run_here(script: str) -> None:
    exec(compile(script, "script", "exec"), {})
