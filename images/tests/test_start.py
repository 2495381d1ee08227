"""What is in the images starts and serves, with their own Python and libraries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from image_files import Image
from unpacked import Container, Server

MOCK_FOLDER = "usr/lib/timeslice-gpu-mock"
ON_MOCK_GPUS = {
    "LD_LIBRARY_PATH": f"/{MOCK_FOLDER}",
    "TIMESLICE_GPU_MOCK": "2x80GiB",
    "TIMESLICE_GPU_MOCK_DIR": "/mock",
}
VERSION = re.search(r'VERSION = "(.+)"', Path("tools/wheel/version.bzl").read_text()).group(1)  # type: ignore[union-attr]

IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print("all")
"""
"""Every module of ours: what it wants of others is there."""


def health(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest.fixture(scope="module")
def orchestrator(images: dict[str, Image], roots: Path) -> Container:
    return Container(images["orchestrator"], roots / "orchestrator")


@pytest.fixture(scope="module")
def agent(images: dict[str, Image], roots: Path) -> Container:
    container = Container(images["snapshot_agent"], roots / "agent")
    # As a node with mock GPUs mounts it.
    (container.root / MOCK_FOLDER).mkdir(parents=True)
    for path, data in images["gpu_mock"].contents.items():
        if path.startswith(MOCK_FOLDER):
            (container.root / path).write_bytes(data)
    return container


@pytest.mark.parametrize(("name", "flag"), [("orchestrator", "--state-dir"), ("agent", "--node")])
def test_help(request: pytest.FixtureRequest, name: str, flag: str) -> None:
    container: Container = request.getfixturevalue(name)
    assert flag in container.run("--help", entrypoint=True)


def test_orchestrator_serves_as_its_user_and_writes_nothing_but_its_store(orchestrator: Container) -> None:
    state = orchestrator.folder("state")
    before = orchestrator.files()
    arguments = ["--listen", "127.0.0.1:0", "--state-dir", state]
    with Server(orchestrator, arguments, "orchestrator ready", {}) as server:
        [address] = server.said["listen"]
        assert health(address) == "SERVING"
        assert server.stop() == 0
    written = {path.relative_to(orchestrator.root).parts[0] for path in orchestrator.files() - before}
    assert written == {"state"}


def test_agent_serves_with_the_drivers_libraries_of_its_node(agent: Container) -> None:
    mock, state = agent.folder("mock"), agent.folder("state")
    before = agent.files()
    arguments = ["--listen", "127.0.0.1:0", "--node", "n", "--state-dir", state, "--group", "trainers=0,1"]
    with Server(agent, arguments, "snapshot agent ready", ON_MOCK_GPUS) as server:
        address = re.search(r"127\.0\.0\.1:[1-9]\d*", json.dumps(server.said))
        assert address, server.said
        assert health(address[0]) == "SERVING"
        assert server.stop() == 0
    written = {"/" + path.relative_to(agent.root).parts[0] for path in agent.files() - before}
    assert written <= {state, mock}


def test_every_module_of_the_servers_can_be_imported(orchestrator: Container, agent: Container) -> None:
    for container, package in ((orchestrator, "orchestrator"), (agent, "snapshot_agent_server")):
        packages = [package, "kubernetes.aio.client.api", "grpc_health"]
        assert container.run("/usr/bin/python3", "-W", "error", "-c", IMPORT_ALL, *packages) == "all\n"


def test_the_example_has_the_client_and_what_the_demo_trains_with(
    images: dict[str, Image], orchestrator: Container, tmp_path: Path
) -> None:
    example = Container(images["client_example"], tmp_path / "example")
    assert example.run("timeslice", "--version").startswith(f"timeslice {VERSION} ")
    assert example.run("/usr/bin/python3", "-c", IMPORT_ALL, "timeslice_demo", "timeslice") == "all\n"
    program = "import sklearn.datasets as d, cuda.bindings.driver, pynvml; print(len(d.load_digits().data))"
    assert example.run("sh", "-c", f"python3 -c '{program}'") == "1797\n"
    arguments = ["--listen", "127.0.0.1:0", "--state-dir", orchestrator.folder("state")]
    with Server(orchestrator, arguments, "orchestrator ready", {}) as server:
        status = example.run("timeslice", "status", "--json", env={"TIMESLICE_ORCH_ADDR": server.said["listen"][0]})
        assert json.loads(status)["groups"] == []


def test_gpu_mock_makes_devices(images: dict[str, Image], tmp_path: Path) -> None:
    container = Container(images["gpu_mock"], tmp_path / "mock")
    env = {"TIMESLICE_GPU_MOCK_DIR": container.folder("mock")}
    container.run("gpu-mock", "create", "2x80GiB", env=env)
    assert len(json.loads(container.run("gpu-mock", "show", "--json", env=env))["devices"]) == 2
    assert container.run("/usr/bin/python3", "-W", "error", "-c", IMPORT_ALL, "gpu_mock_kubernetes") == "all\n"
    for command in ("driver", "device-plugin", "dra-plugin"):
        assert command in container.run("--help", entrypoint=True)
