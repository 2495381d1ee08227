"""What holds for all manifests: they are valid, fit each other and the programs, and ask for no more than is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kustomized import OVERLAYS, built, named

from timeslice_deploy import manifests, names
from timeslice_deploy.checks import CLUSTER_SCOPED
from timeslice_deploy.manifests import Object

KUBERNETES = ["1.34", "1.37"]
"""The oldest that we run on, and the newest that we know."""

READING = {"get", "list", "watch"}
WRITING = {"create", "update", "patch", "delete"}

PRIVILEGED: dict[str, str] = {}
"""Containers that may be privileged, as "workload/container", each with the reason."""

HOST_FOLDERS = {
    "/run/timeslice": "the socket of the node's agent, for the pods of jobs",
    "/var/lib/timeslice": "what an agent must know after a restart",
    "/opt/timeslice-gpu-mock": "the mock driver's libraries",
    "/run/timeslice-gpu-mock": "the mock GPUs' memory",
    "/var/run/cdi": "which files containers get with a mock GPU",
    "/var/lib/kubelet/device-plugins": "where the kubelet finds device plugins",
    "/var/lib/kubelet/plugins": "where the kubelet finds DRA drivers",
    "/var/lib/kubelet/plugins_registry": "where the kubelet finds DRA drivers",
}
"""Folders of nodes that pods of ours may have, those below them too, each with the reason."""

AGENT_CAPABILITIES_AT_MOST = {"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "KILL", "SYS_PTRACE", "SYS_RESOURCE"}


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return built(request.param)


def pods(objects: list[Object]) -> list[tuple[str, Any]]:
    """(workload's name, pod spec)"""
    return [(o["metadata"]["name"], o["spec"]["template"]["spec"]) for o in manifests.workloads(objects)]


def containers(pod: Any) -> list[Any]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("version", KUBERNETES)
def test_each_object_is_valid(objects: list[Object], version: str) -> None:
    for o in objects:
        kubernetes_validate.validate(o, version, strict=True)


def test_nothing_lacks_our_label_or_is_in_another_namespace(objects: list[Object]) -> None:
    for o in objects:
        key, _, value = names.PART_OF.partition("=")
        assert o["metadata"].get("labels", {}).get(key) == value, manifests.described(o)
        namespace = o["metadata"].get("namespace")
        assert namespace == (None if o["kind"] in CLUSTER_SCOPED else names.NAMESPACE), manifests.described(o)


def test_the_names_are_those_that_llm_ds_users_look_for(objects: list[Object]) -> None:
    deployment = named(objects, "Deployment", names.ORCHESTRATOR)
    daemonset = named(objects, "DaemonSet", names.AGENT)
    for o in (deployment, daemonset):
        label = {"app.kubernetes.io/name": o["metadata"]["name"]}
        for labels in (o["metadata"]["labels"], o["spec"]["template"]["metadata"]["labels"]):
            assert labels.items() >= label.items()
        assert o["spec"]["selector"] == {"matchLabels": label}
    service = named(objects, "Service", names.ORCHESTRATOR)
    assert service["spec"]["selector"] == {"app.kubernetes.io/name": names.ORCHESTRATOR}
    assert [port["port"] for port in service["spec"]["ports"]] == [50051]
    assert daemonset["spec"]["template"]["spec"]["nodeSelector"][names.ENABLED_LABEL] == "true"
    tolerated = {toleration["key"] for toleration in daemonset["spec"]["template"]["spec"]["tolerations"]}
    assert "timeslice.io/shared" in tolerated


def test_selectors_find_their_pods_and_ports_have_names(objects: list[Object]) -> None:
    templates = [o["spec"]["template"] for o in manifests.workloads(objects)]
    for o in manifests.workloads(objects):
        wanted = o["spec"]["selector"]["matchLabels"]
        assert o["spec"]["template"]["metadata"]["labels"].items() >= wanted.items()
        matching = [t for t in templates if t["metadata"]["labels"].items() >= wanted.items()]
        assert len(matching) == 1, f"{manifests.described(o)} would take another's pods"
    for o in objects:
        if o["kind"] == "Service":
            [template] = [t for t in templates if t["metadata"]["labels"].items() >= o["spec"]["selector"].items()]
            ports = {port.get("name") for c in template["spec"]["containers"] for port in c.get("ports", [])}
            assert {port["targetPort"] for port in o["spec"]["ports"]} <= ports


def test_service_accounts_are_there_and_bound_to_their_own_role(objects: list[Object]) -> None:
    accounts = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
    for name, pod in pods(objects):
        account = pod.get("serviceAccountName", "default")
        assert account in accounts or pod.get("automountServiceAccountToken") is False, name
    roles = {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"] in ("Role", "ClusterRole")}
    for o in objects:
        if o["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert (o["roleRef"]["kind"], o["roleRef"]["name"]) in roles
            for subject in o["subjects"]:
                assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", names.NAMESPACE)
                assert subject["name"] in accounts


def test_rights_are_few(objects: list[Object]) -> None:
    for o in objects:
        if o["kind"] not in ("Role", "ClusterRole"):
            continue
        for rule in o["rules"]:
            where = f"{manifests.described(o)}: {rule}"
            assert set(rule["verbs"]) <= READING | WRITING, where
            assert "nonResourceURLs" not in rule, where
            for resource in rule["resources"]:
                assert resource not in ("*", "secrets", "pods/exec", "nodes/proxy", "serviceaccounts/token"), where
            if set(rule["resources"]) & {"nodes", "pods"}:
                assert set(rule["verbs"]) <= READING, where
    [agent] = [o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == names.AGENT]
    assert all(set(rule["verbs"]) <= READING for rule in agent["rules"]), "whoever takes a node must not write"


def test_images_are_ours_and_of_this_version(objects: list[Object]) -> None:
    version_file = Path("tools/wheel/version.bzl")
    version = re.search(r'VERSION = "(.+)"', version_file.read_text())
    assert version is not None
    for image in manifests.images(objects):
        name, _, tag = image.rpartition(":")
        assert name.rpartition("/")[0] in ("localhost", "registry.example.com/timeslice"), image
        assert name.rpartition("/")[2].startswith(manifests.IMAGE_PREFIX), image
        assert tag == version[1], image


def test_a_registry_is_put_before_our_images_alone() -> None:
    objects = built("mock-gpu")
    changed = manifests.with_registry(objects, "r.example.org:5000/x/")
    assert [i.replace("localhost/", "r.example.org:5000/x/") for i in manifests.images(objects)] == manifests.images(
        changed
    )
    assert all(image.startswith("localhost/") for image in manifests.images(objects)), "the original stays"


def test_containers_say_what_they_need_and_may_not_grow(objects: list[Object]) -> None:
    for name, pod in pods(objects):
        for container in containers(pod):
            where = f"{name}/{container['name']}"
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), where
            assert container["imagePullPolicy"] == "IfNotPresent", where
            security = container["securityContext"]
            if security.get("privileged"):
                assert where in PRIVILEGED, f"{where} is privileged without a stated reason"
                continue
            assert security["allowPrivilegeEscalation"] is False, where
            assert security["readOnlyRootFilesystem"] is True, where
            assert security["capabilities"]["drop"] == ["ALL"], where
        for container in pod["containers"]:
            if name in (names.ORCHESTRATOR, names.AGENT):
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container), name


def test_folders_of_nodes_are_known(objects: list[Object]) -> None:
    for name, pod in pods(objects):
        for volume in pod.get("volumes", []):
            path = volume.get("hostPath", {}).get("path")
            if path is not None:
                assert any(path == known or path.startswith(known + "/") for known in HOST_FOLDERS), f"{name}: {path}"


def test_the_orchestrator_keeps_the_restricted_profile(objects: list[Object]) -> None:
    pod = named(objects, "Deployment", names.ORCHESTRATOR)["spec"]["template"]["spec"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all(set(volume) <= {"name", "secret", "emptyDir"} for volume in pod["volumes"])
    [container] = pod["containers"]
    assert "add" not in container["securityContext"]["capabilities"]
    assert "hostPort" not in container["ports"][0]


def test_the_agent_has_few_capabilities(objects: list[Object]) -> None:
    pod = named(objects, "DaemonSet", names.AGENT)["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & set(pod)
    [container] = pod["containers"]
    assert set(container["securityContext"]["capabilities"]["add"]) <= AGENT_CAPABILITIES_AT_MOST


def test_only_one_agent_and_one_orchestrator_at_a_time(objects: list[Object]) -> None:
    deployment = named(objects, "Deployment", names.ORCHESTRATOR)["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    rolling = named(objects, "DaemonSet", names.AGENT)["spec"]["updateStrategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
