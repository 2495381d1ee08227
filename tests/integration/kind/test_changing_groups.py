"""Groups, nodes and jobs that change under a holder: row 42 of docs/design/failures.md, labels, returning jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_calls import agent, is_in
from device_jobs import (
    MIB,
    SHORTER_THAN_A_TIME_TO_LIVE_S,
    DeviceJob,
    after_first_turns,
    hand_over,
    pods_of_jobs,
    take_turns,
    whole_job,
)
from group_watch import GroupWatch, has_condition, is_granted, waits
from hands import Hands
from installation import SYSTEM, Installation
from job_pod import Process, claim, new_claim_name, pod
from kube import Kube, Object

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

NAMESPACE = "changing-groups"
GROUP = "trainers"
OTHER = "samplers"
ORCHESTRATOR = "app.kubernetes.io/name=timesliceorchestrator"


@pytest.fixture
def shared() -> str:
    """The claim of the test's pods."""
    return new_claim_name()


@pytest.fixture
def kube(timeslice: Installation, shared: str) -> Iterator[Kube]:
    with pods_of_jobs(timeslice.kube, NAMESPACE, GROUP, shared) as kube:
        yield kube


@pytest.fixture
def jobs(kube: Kube) -> Iterator[tuple[DeviceJob, DeviceJob]]:
    with after_first_turns(kube, NAMESPACE, GROUP) as jobs:
        yield jobs


@pytest.fixture
def watch(kube: Kube) -> Iterator[GroupWatch]:
    with GroupWatch(kube, NAMESPACE, GROUP) as watch:
        yield watch


def group_until(kube: Kube, group: str, seen: Callable[[Object], bool], timeout_s: float = 30) -> Object:
    """The TimeSliceGroup, once it is as `seen` wants it. It may be away in between."""
    return kube.watch_until(
        lambda found: found["metadata"]["name"] == group and seen(found), "tsg", timeout_s=timeout_s
    )


def has_nodes(*names: str) -> Callable[[Object], bool]:
    return lambda found: {one["name"] for one in found["spec"].get("nodes", ())} == set(names)


def has_no_conditions(status: dict[str, Any]) -> bool:
    return not status["conditions"]


@contextlib.contextmanager
def relabelled(kube: Kube, node: str, *labels: str) -> Iterator[None]:
    """With changes of a node's labels for groups: "ID=true", or "ID-"; undone behind the block."""
    there = kube.get("node", node)["metadata"]["labels"]
    names = [f"group.timeslice.io/{label}" for label in labels]
    before = [name.rstrip("-").partition("=")[0] for name in names]
    try:
        kube.call("label", "--overwrite", "node", node, *names)
        yield
    finally:
        back = [f"{name}={there[name]}" if name in there else f"{name}-" for name in before]
        kube.call("label", "--overwrite", "node", node, *back)


def test_row_42_a_group_that_is_deleted_goes_when_nobody_holds_it_and_is_made_again(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, timeslice: Installation
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    b.control.begin("acquire", 60)
    watch.until(waits("b"))
    before = kube.get("tsg", GROUP)
    kube.call("delete", "tsg", GROUP, "--wait=false")
    a.check()
    a.control.call("release")
    b.control.result()
    b.check()
    leaving = kube.get("tsg", GROUP)
    assert leaving["metadata"]["uid"] == before["metadata"]["uid"]
    assert "deletionTimestamp" in leaving["metadata"]
    b.control.call("release")
    group_until(kube, GROUP, lambda found: found["metadata"]["uid"] != before["metadata"]["uid"])
    group_until(kube, GROUP, has_nodes(timeslice.nodes[GROUP]))
    take_turns(jobs)
    assert kube.get("tsg", GROUP)["status"]["token"] > before["status"]["token"]
    watch.until(has_no_conditions)


def test_row_42_a_group_that_is_removed_by_force_comes_back_with_its_lease(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, timeslice: Installation
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    b.control.begin("acquire", 120)
    watch.until(waits("b"))
    before = kube.get("tsg", GROUP)
    kube.call("delete", "tsg", GROUP, "--wait=false")
    kube.call("patch", "tsg", GROUP, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    made = group_until(kube, GROUP, lambda found: found.get("status", {}).get("lease", {}).get("job") == "a")
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert made["status"]["lease"]["token"] == before["status"]["lease"]["token"]
    group_until(kube, GROUP, has_nodes(timeslice.nodes[GROUP]))
    # What came back is a record: another orchestrator finds holder and waiter in it.
    [found] = kube.get("pods", "-n", SYSTEM, "-l", ORCHESTRATOR)["items"]
    Hands(kube, NAMESPACE).kill(found["spec"]["nodeName"], "python3", "orchestrator")
    hand_over(jobs)


def test_row_42_a_lost_record_is_made_from_what_the_holder_says(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    b.control.begin("acquire", 120)
    watch.until(waits("b"))
    before = kube.get("tsg", GROUP)
    with orchestrator_away(kube):
        kube.call("delete", "tsg", GROUP, "--wait=false")
        kube.call("patch", "tsg", GROUP, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    made = group_until(kube, GROUP, lambda found: found.get("status", {}).get("lease", {}).get("job") == "a")
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert made["status"]["lease"]["token"] == before["status"]["lease"]["token"]
    hand_over(jobs)


@contextlib.contextmanager
def orchestrator_away(kube: Kube) -> Iterator[None]:
    def scale(replicas: int) -> None:
        kube.call("scale", "deployment/timesliceorchestrator", f"--replicas={replicas}", "-n", SYSTEM)

    scale(0)
    try:
        gone = "--for=delete", "--timeout=60s"
        kube.call("wait", "pod", "-l", ORCHESTRATOR, "-n", SYSTEM, *gone, timeout_s=70)
        yield
    finally:
        scale(1)


def test_a_node_joins_a_group_and_leaves_it_again(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, timeslice: Installation
) -> None:
    """Its jobs then have contexts on two nodes; the group that it left has none."""
    node, other = timeslice.nodes[GROUP], timeslice.nodes[OTHER]
    wide_claim = new_claim_name()
    with relabelled(kube, other, f"{OTHER}-", f"{GROUP}=true"):
        group_until(kube, GROUP, has_nodes(node, other))
        group_until(kube, OTHER, has_nodes())
        kube.apply(claim(NAMESPACE, wide_claim))
        wide = {}
        for seed, job in enumerate(jobs, 10):
            made = pod(NAMESPACE, f"{job.name}-wide", job.name, GROUP, wide_claim)
            made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": other}
            kube.apply(made)
            kube.wait("pod", f"{job.name}-wide", "condition=Ready", NAMESPACE)
            process = Process(kube, NAMESPACE, f"{job.name}-wide")
            job.control.call("acquire", 60)
            process.call("open", 0)
            wide[job.name] = process, process.call("alloc", "weights", 16 * MIB, seed)
            job.control.call("release")
        with agent(kube, other) as known:
            for job, saved in zip(jobs, ("b", "a"), strict=True):
                job.control.call("acquire", 60)
                job.check()
                process, written = wide[job.name]
                assert process.call("digest", "weights") == written
                known.until(is_in(saved, pb.JOB_STATE_SAVED))
                job.control.call("release")
        for process, _ in wide.values():
            process.abandon()
        kube.call("delete", "pod", "a-wide", "b-wide", "-n", NAMESPACE, "--grace-period=0", "--force")
    group_until(kube, GROUP, has_nodes(node))
    group_until(kube, OTHER, has_nodes(other))
    group_until(kube, OTHER, lambda found: not found["status"].get("conditions"))
    take_turns(jobs)
    watch.until(has_no_conditions)


def test_a_group_that_loses_its_last_node_keeps_its_holder(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, timeslice: Installation
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    with relabelled(kube, timeslice.nodes[GROUP], f"{GROUP}-"):
        watch.until(has_condition("Misconfigured"))
        b.control.begin("acquire", 60)
        watch.until(waits("b"))
        a.check()
        assert is_granted("a")(watch.status)
    watch.until(has_no_conditions)
    hand_over(jobs)


def test_row_17_a_group_waits_for_a_silent_node_and_goes_on_without_a_removed_one(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, timeslice: Installation
) -> None:
    a, b = jobs
    node, silent = timeslice.nodes[GROUP], "silent"
    labels = {f"group.timeslice.io/{GROUP}": "true"}
    a.control.call("acquire", 60)
    try:
        kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": silent, "labels": labels}})
        group_until(kube, GROUP, has_nodes(node, silent))
        b.control.begin("acquire", 60)
        watch.until(waits("b"))
        a.check()
        a.control.call("release")
        watch.until(lambda status: status["state"] == "UNKNOWN" and waits("b")(status))
    finally:
        kube.call("delete", "node", silent, "--ignore-not-found")
    b.control.result()
    b.check()
    b.control.call("release")
    group_until(kube, GROUP, has_nodes(node))
    take_turns(jobs)
    watch.until(has_no_conditions)


def test_a_job_that_completed_comes_again_under_its_id(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, shared: str
) -> None:
    a, b = jobs
    a.end()
    kube.call("delete", "pod", "a", "-n", NAMESPACE)
    kube.apply(pod(NAMESPACE, "a", "a", GROUP, shared))
    kube.wait("pod", "a", "condition=Ready", NAMESPACE)
    again = DeviceJob(kube, NAMESPACE, "a", GROUP)
    try:
        again.first_turn(3)
        take_turns((again, b))
        watch.until(has_no_conditions)
    finally:
        again.end()


def test_a_deleted_pod_that_held_by_itself_lets_the_next_one_go_on(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, shared: str, timeslice: Installation
) -> None:
    _, b = jobs
    kube.apply(pod(NAMESPACE, "c", "c", GROUP, shared))
    kube.wait("pod", "c", "condition=Ready", NAMESPACE)
    with whole_job(kube, NAMESPACE, "c", timeslice.nodes[GROUP]):
        b.control.begin("acquire", 60)
        watch.until(waits("b"))
        deleted_at = time.monotonic()
        kube.call("delete", "pod", "c", "-n", NAMESPACE, "--grace-period=0", "--force")
        b.control.result()
        assert time.monotonic() - deleted_at < SHORTER_THAN_A_TIME_TO_LIVE_S
    b.check()
    watch.until(has_no_conditions)
    b.control.call("release")
    take_turns(jobs)
