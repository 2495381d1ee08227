"""The agent on its node: whose processes are whose, restarts under traffic, a second agent, pods that go midway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from agent_calls import agent, agent_log, context, is_in
from installation import SYSTEM, Installation
from job_pod import Process, claim, in_namespace, new_claim_name, pod
from kube import Kube, Object
from system_pods import AGENT, gpu_mock, system_pod

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

MIB = 1 << 20
NAMESPACE = "agent"
GROUP = "trainers"


@pytest.fixture
def shared() -> str:
    """The claim of the test's pods."""
    return new_claim_name()


@pytest.fixture
def kube(timeslice: Installation, shared: str) -> Iterator[Kube]:
    with in_namespace(timeslice.kube, NAMESPACE, claim(NAMESPACE, shared)) as kube:
        yield kube


@pytest.fixture
def node(timeslice: Installation) -> str:
    return timeslice.nodes[GROUP]


def start(kube: Kube, *objects: Object) -> None:
    kube.apply(*objects)
    for one in objects:
        kube.wait("pod", one["metadata"]["name"], "condition=Ready", NAMESPACE, timeout_s=60)


def job_pod(name: str, shared: str, group: str | None = GROUP) -> Object:
    """A pod of the job of the same name."""
    made = pod(NAMESPACE, name, name, GROUP, shared)
    if group is None:
        del made["metadata"]["labels"]["timeslice.io/group"]
    return made


def test_a_jobs_processes_are_known_by_the_labels_of_its_pod(kube: Kube, node: str, shared: str) -> None:
    """Nothing is registered, and labels may come and change while they run."""
    unlabelled = job_pod("unlabelled", shared, group=None)
    del unlabelled["metadata"]["labels"]["timeslice.io/job-id"]
    start(kube, job_pod("labelled", shared, group=None), unlabelled)
    with ExitStack() as stack:
        known = stack.enter_context(agent(kube, node))
        first = stack.enter_context(Process(kube, NAMESPACE, "labelled"))
        second = stack.enter_context(Process(kube, NAMESPACE, "unlabelled"))
        first.call("join", None, None, GROUP)
        first.call("acquire", 60)
        for process in (first, second):
            process.call("open", 0)
        status = known.until(lambda status: context(status, "labelled") and unmanaged(status))
        found = context(status, "labelled")
        assert found is not None
        assert (found.group, len(found.pids), len(unmanaged(status))) == (GROUP, 1, 1)
        kube.call("label", "pod", "unlabelled", "-n", NAMESPACE, "timeslice.io/job-id=late")
        status = known.until(lambda status: context(status, "late") and not unmanaged(status))
        kube.call("label", "pod", "labelled", "-n", NAMESPACE, "--overwrite", "timeslice.io/job-id=renamed")
        known.until(lambda status: context(status, "renamed") and not context(status, "labelled"))
    with agent(kube, node) as known:
        known.until(lambda status: not context(status, "renamed") and not context(status, "late"))


def unmanaged(status: pb.StatusResponse) -> set[int]:
    return {pid for one in status.accelerator_statuses for pid in one.unmanaged_pids}


def test_agents_restart_one_after_the_other_in_the_middle_of_traffic(kube: Kube, node: str, shared: str) -> None:
    start(kube, job_pod("a", shared), job_pod("b", shared))
    with Process(kube, NAMESPACE, "a") as a, Process(kube, NAMESPACE, "b") as b:
        jobs = {"a": a, "b": b}
        written = {}
        for seed, (name, process) in enumerate(jobs.items()):
            process.call("join", None, None, None)
            process.call("acquire", 60)
            process.call("open", 0)
            written[name] = process.call("alloc", "weights", 20 * MIB, seed)
            process.call("release")
        before = system_pod(kube, AGENT, node)["metadata"]["uid"]
        is_done = threading.Event()

        def restart() -> None:
            try:
                kube.call("rollout", "restart", "daemonset/snapshot-agent", "-n", SYSTEM)
                kube.call(
                    "rollout", "status", "daemonset/snapshot-agent", "-n", SYSTEM, "--timeout=180s", timeout_s=190
                )
            finally:
                is_done.set()

        restarting = threading.Thread(target=restart)
        restarting.start()
        turns = after = 0
        while after < 3:
            after += is_done.is_set()
            for name, process in jobs.items():
                process.call("acquire", 120)
                assert process.call("digest", "weights") == written[name]
                process.call("busy", 2_000)
                process.call("release")
            turns += 1
        restarting.join()
        assert system_pod(kube, AGENT, node)["metadata"]["uid"] != before
        assert turns > 5, "there was no traffic to speak of"


def test_a_second_agent_on_the_node_is_refused_with_a_reason(kube: Kube, node: str) -> None:
    template = kube.get("daemonset", "snapshot-agent", "-n", SYSTEM)["spec"]["template"]
    spec = {**template["spec"], "nodeName": node, "restartPolicy": "Never"}
    [container] = spec["containers"]
    container["args"].append("--takeover-wait-s=3")
    second = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "second-agent", "namespace": SYSTEM},
        "spec": spec,
    }
    first = system_pod(kube, AGENT, node)
    try:
        kube.apply(second)
        failed = kube.watch_until(
            lambda found: found["status"].get("phase") == "Failed", "pod", "second-agent", "-n", SYSTEM, timeout_s=120
        )
    finally:
        kube.call("delete", "pod", "second-agent", "-n", SYSTEM, "--grace-period=0", "--force")
    [ended] = [one["state"]["terminated"] for one in failed["status"]["containerStatuses"]]
    assert ended["exitCode"] == 2
    assert "another snapshot agent (process" in ended["message"]
    now = system_pod(kube, AGENT, node)
    assert now["metadata"]["uid"] == first["metadata"]["uid"]
    restarts = [one["restartCount"] for found in (first, now) for one in found["status"]["containerStatuses"]]
    assert restarts[0] == restarts[1], "the first agent took notice"


def test_a_pod_that_is_deleted_in_mid_snapshot_leaves_no_fault(kube: Kube, node: str, shared: str) -> None:
    start(kube, job_pod("a", shared), job_pod("b", shared))
    with Process(kube, NAMESPACE, "a") as a, Process(kube, NAMESPACE, "b") as b, agent(kube, node) as known:
        for seed, process in enumerate((a, b)):
            process.call("join", None, None, None)
            process.call("acquire", 60)
            process.call("open", 0)
            process.call("alloc", "weights", 20 * MIB, seed)
            if process is b:
                break
            process.call("release")
        gpu_mock(kube, node, "inject", "slow", "checkpoint=5")
        try:
            a.begin("acquire", 120)
            b.call("release")  # its snapshot takes 5 s now
            known.until(is_in("b", pb.JOB_STATE_TRANSITIONING))
            kube.call("delete", "pod", "b", "-n", NAMESPACE, "--grace-period=0", "--force")
            a.result()
        finally:
            gpu_mock(kube, node, "inject", "slow", "checkpoint=0")  # a setting: --clear leaves it
        status = known.until(lambda status: not context(status, "b"))
        assert pb.JOB_STATE_FAULTED not in {one.state for one in status.job_statuses}
        lines = [json.loads(line) for line in agent_log(kube, node).splitlines() if line.startswith("{")]
        ends = [line["msg"] for line in lines if line["msg"].startswith("snapshot of b@")]
        assert "gone" in ends[-1], ends
        a.call("release")


def test_a_pod_cannot_give_orders_or_take_what_is_not_its_own(kube: Kube, node: str) -> None:
    """The socket on the node is for registrations; pid 1 of a pod is not pid 1 of the node."""
    stranger = pod(NAMESPACE, "stranger", "stranger", GROUP, None)
    stranger["spec"]["securityContext"] = {"runAsUser": 1000}
    [container] = stranger["spec"]["containers"]
    container["volumeMounts"].append({"name": "agent", "mountPath": "/run/timeslice"})
    stranger["spec"]["volumes"].append({"name": "agent", "hostPath": {"path": "/run/timeslice"}})
    start(kube, stranger)
    program = """
import grpc, json
from timeslice.snapshot_agent import SnapshotAgentClient, register_workload
from timeslice.snapshot_agent.client import SnapshotAgentError
client = SnapshotAgentClient("unix:/run/timeslice/agent.sock")
refused = []
for order in (client.snapshot, client.restore):
    try:
        order("victim", "trainers")
    except SnapshotAgentError as error:
        refused.append(error.code.name if hasattr(error.code, "name") else str(error.code))
register_workload(None, "stranger", "trainers", pids=[1]).close()
print(json.dumps([refused, len(client.status().accelerator_statuses)]))
"""
    answer = kube.exec("stranger", NAMESPACE, "python3", "-c", program)
    refused, devices = json.loads(answer.splitlines()[-1])
    assert refused == ["PERMISSION_DENIED", "PERMISSION_DENIED"]
    assert devices > 0
    with agent(kube, node) as known:
        status = known.until(lambda status: context(status, "stranger"))
        found = context(status, "stranger")
        assert found is not None
        assert 1 not in found.pids
        assert len(found.pids) == 1


def test_all_agents_are_ready_again(kube: Kube) -> None:
    agents = f"app.kubernetes.io/name={AGENT}"
    kube.call("wait", "pod", "-l", agents, "--for=condition=Ready", "-n", SYSTEM, "--timeout=60s", timeout_s=70)
