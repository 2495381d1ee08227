"""Row 22 of docs/design/failures.md: two roles of one job on one node, in two groups."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from agent_calls import AgentCalls, agent
from device_jobs import MIB
from group_watch import CONTROLLER, Controller, controller
from installation import Installation
from job_pod import Process, in_namespace, new_claim_name, pod
from job_pod import claim as any_claim
from kube import Kube, Object
from test_changing_groups import group_until, relabelled

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

NAMESPACE = "two-groups"
DEVICES = {"samplers": 0, "trainers": 1}
"""Of the node that both groups are on, by index."""


def claim(kube: Kube, name: str, node: str, index: int) -> Object:
    """The device of that index on a node."""
    [offered] = [one["spec"] for one in kube.get("resourceslices")["items"] if one["spec"]["nodeName"] == node]
    [uuid] = [one["attributes"]["uuid"]["string"] for one in offered["devices"] if one["name"] == f"gpu-{index}"]
    made = any_claim(NAMESPACE, name)
    [request] = made["spec"]["devices"]["requests"]
    is_it = f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'
    request["exactly"]["selectors"] = [{"cel": {"expression": is_it}}]
    return made


@pytest.fixture
def node(timeslice: Installation) -> Iterator[str]:
    """A node of both groups, with one device in each."""
    kube, node = timeslice.kube, timeslice.nodes["trainers"]
    with stated(kube, node), relabelled(kube, node, "samplers=true"):
        for group in DEVICES:
            group_until(kube, group, lambda found: any(one["name"] == node for one in found["spec"]["nodes"]))
            group_until(kube, group, lambda found: not found["status"].get("conditions"))
        yield node
    group_until(kube, "samplers", lambda found: [timeslice.nodes["samplers"]] == nodes_of(found))


def nodes_of(group: Object) -> list[str]:
    return [one["name"] for one in group["spec"]["nodes"]]


@contextlib.contextmanager
def stated(kube: Kube, node: str) -> Iterator[None]:
    """As docs/kubernetes.md says it for a node in several groups."""

    def state(group: str, spec: Object) -> None:
        text = json.dumps(
            {"apiVersion": "timeslice.io/v1alpha1", "kind": "TimeSliceGroup", "metadata": {"name": group}, "spec": spec}
        )
        kube.call("apply", "--server-side", "--field-manager=platform-team", "-f", "-", stdin=text)

    try:
        for group, index in DEVICES.items():
            state(group, {"nodes": [{"name": node, "accelerators": [str(index)]}]})
        yield
    finally:
        for group in DEVICES:
            state(group, {})


@pytest.fixture
def claims() -> dict[str, str]:
    return {group: new_claim_name() for group in DEVICES}


@pytest.fixture
def kube(timeslice: Installation, node: str, claims: dict[str, str]) -> Iterator[Kube]:
    objects = [claim(timeslice.kube, name, node, DEVICES[group]) for group, name in claims.items()]
    with in_namespace(timeslice.kube, NAMESPACE, *objects, controller(NAMESPACE)) as kube:
        kube.wait("pod", CONTROLLER, "condition=Ready", NAMESPACE)
        yield kube


@pytest.fixture
def known(kube: Kube, node: str) -> Iterator[AgentCalls]:
    with agent(kube, node) as known:
        yield known


def on(node: str, made: Object) -> Object:
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return made


class Role:
    """What a job has in one of its groups."""

    def __init__(self, kube: Kube, job: str, group: str) -> None:
        self.control = Controller(kube, NAMESPACE, job, group)
        self.process = Process(kube, NAMESPACE, f"{job}-{group}")
        self.written = ""

    def take(self, seed: int | None = None) -> None:
        self.control.call("acquire", 60)
        if seed is not None:
            self.process.call("open", 0)
            self.written = self.process.call("alloc", "weights", 16 * MIB, seed)
        assert self.process.call("digest", "weights") == self.written

    def end(self) -> None:
        self.control.abandon()
        self.process.abandon()


def states(status: pb.StatusResponse) -> dict[tuple[str, str], int]:
    return {(one.job_id, one.group): one.state for one in status.job_statuses}


def test_row_22_two_roles_of_a_job_on_a_node_are_saved_and_restored_apart(
    kube: Kube, node: str, claims: dict[str, str], known: AgentCalls
) -> None:
    for job in ("a", "b"):
        kube.apply(*(on(node, pod(NAMESPACE, f"{job}-{group}", job, group, claims[group])) for group in DEVICES))
    for job in ("a", "b"):
        for group in DEVICES:
            kube.wait("pod", f"{job}-{group}", "condition=Ready", NAMESPACE)
    a = {group: Role(kube, "a", group) for group in DEVICES}
    b = {group: Role(kube, "b", group) for group in DEVICES}
    for seed, group in enumerate(DEVICES):
        a[group].take(seed)
    a["samplers"].control.call("release")
    b["samplers"].take(10)
    seen = states(known.until(lambda status: states(status).get(("a", "samplers")) == pb.JOB_STATE_SAVED))
    assert seen["a", "trainers"] == pb.JOB_STATE_RUNNING
    # a holds the one and is saved in the other; now the other way round.
    b["samplers"].control.call("release")
    a["trainers"].control.call("release")
    b["trainers"].take(11)
    a["samplers"].take()
    seen = states(known.until(lambda status: states(status).get(("a", "trainers")) == pb.JOB_STATE_SAVED))
    assert seen["a", "samplers"] == pb.JOB_STATE_RUNNING
    assert seen["b", "samplers"] == pb.JOB_STATE_SAVED
    a["samplers"].control.call("release")
    b["trainers"].control.call("release")
    for roles in (a, b):
        for group in DEVICES:
            roles[group].take()
        for group in DEVICES:
            roles[group].control.call("release")
    for roles in (a, b):
        for role in roles.values():
            role.end()


def test_row_22_a_process_on_devices_of_two_groups_is_refused(
    kube: Kube, node: str, claims: dict[str, str], known: AgentCalls
) -> None:
    made = on(node, pod(NAMESPACE, "wide", "wide", "trainers", claims["trainers"]))
    made["spec"]["resourceClaims"].append({"name": "other", "resourceClaimName": claims["samplers"]})
    made["spec"]["containers"][0]["resources"]["claims"].append({"name": "other"})
    kube.apply(made)
    kube.wait("pod", "wide", "condition=Ready", NAMESPACE)
    with Process(kube, NAMESPACE, "wide") as process, Controller(kube, NAMESPACE, "wide", "trainers") as control:
        control.call("acquire", 60)
        for ordinal in range(2):
            process.call("open", ordinal)
            process.call("alloc", f"on-{ordinal}", MIB, ordinal)
        status = known.until(lambda status: states(status).get(("wide", "trainers")) == pb.JOB_STATE_FAULTED)
        [found] = [one for one in status.job_statuses if one.job_id == "wide"]
        assert "of group 'samplers'" in found.reason
        for call in (["release"], ["acquire", 30]):
            with pytest.raises(AssertionError, match="of group 'samplers'"):
                control.call(*call)
        # Where its owner looks first.
        event = kube.watch_until(
            lambda event: event["reason"] == "Faulted", "events", "-n", NAMESPACE, "--field-selector",
            "involvedObject.name=wide",
        )  # fmt: skip
        assert event["type"] == "Warning"
        assert "of group 'samplers'" in event["message"]
