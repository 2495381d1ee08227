"""The programs take the flags that the manifests give them, and find there what these name."""

from __future__ import annotations

from typing import Any

import pytest
from kustomized import OVERLAYS, built, named

from orchestrator.main import parse
from snapshot_agent_server.config import from_arguments
from timeslice_deploy import names
from timeslice_deploy.manifests import Object


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return built(request.param)


def test_the_orchestrator_takes_its_flags_and_can_finish_in_its_grace(objects: list[Object]) -> None:
    pod = named(objects, "Deployment", names.ORCHESTRATOR)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    arguments = parse(container["args"], environment(container))
    assert arguments.agent_tls is not None
    assert mounted(pod, container, str(arguments.agent_tls.cert)) == names.ORCHESTRATOR_SECRET
    assert pod["terminationGracePeriodSeconds"] >= arguments.config.stop_grace_s + 5
    assert arguments.listen == (f"[::]:{container['ports'][0]['containerPort']}",)


def test_the_agent_takes_its_flags_and_can_finish_in_its_grace(objects: list[Object]) -> None:
    pod = named(objects, "DaemonSet", names.AGENT)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    config = from_arguments(container["args"], environment(container))
    assert config.tls is not None
    assert mounted(pod, container, str(config.tls.cert)) == names.AGENT_SECRET
    assert pod["terminationGracePeriodSeconds"] >= config.close_grace_s + 5
    assert config.orders_from == f"{names.ORCHESTRATOR}.{names.NAMESPACE}"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.listen == (f"[::]:{ports['grpc']}", "unix:/run/timeslice/agent.sock")
    assert config.health == f"[::]:{ports['health']}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == ports["health"]
    assert config.node == "spec.nodeName"
    assert mounted(pod, container, str(config.state_dir)) == "/var/lib/timeslice"


def environment(container: Any) -> dict[str, str]:
    """What the container sees; of the downward API the field's path."""
    return {
        one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in container.get("env", [])
    }


def mounted(pod: Any, container: Any, path: str) -> str:
    """What lies there: a Secret's name or a folder of the node."""
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    [volume] = [name for at, name in mounts.items() if path == at or path.startswith(at + "/")]
    [found] = [v for v in pod["volumes"] if v["name"] == volume]
    return str(found["secret"]["secretName"] if "secret" in found else found["hostPath"]["path"])
