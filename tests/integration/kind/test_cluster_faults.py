"""The cluster itself fails: a kubelet, the API server, watches. Rows 29 and 30 of docs/design/failures.md."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from agent_calls import agent, context, is_in
from device_jobs import DeviceJob, after_first_turns, hand_over, pods_of_jobs, take_turns
from group_watch import CONTROLLER, GroupWatch, has_condition, is_granted, waits
from installation import Installation
from job_pod import Process, new_claim_name, pod
from kube import Kube
from node_faults import (
    api_server_away,
    forget_connections,
    kill_agent,
    kill_kubelet,
    own_cluster,
    pods_cut_off,
    renewed,
    wait_for_renewal,
)
from system_pods import AGENT, system_pod

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

NAMESPACE = "cluster-faults"
GROUP = "trainers"
AWAY_S = 30.0
SILENCE_S = 75.0
"""After which both sides take a watch for dead."""


@pytest.fixture
def made(timeslice: Installation) -> Installation:
    return own_cluster(timeslice)


@pytest.fixture
def shared() -> str:
    """The claim of the test's pods."""
    return new_claim_name()


@pytest.fixture
def kube(made: Installation, shared: str) -> Iterator[Kube]:
    with pods_of_jobs(made.kube, NAMESPACE, GROUP, shared) as kube:
        yield kube


@pytest.fixture
def jobs(kube: Kube, made: Installation) -> Iterator[tuple[DeviceJob, DeviceJob]]:
    with after_first_turns(kube, NAMESPACE, GROUP, made) as jobs:
        yield jobs


@pytest.fixture
def watch(kube: Kube, made: Installation) -> Iterator[GroupWatch]:
    with GroupWatch(kube, NAMESPACE, GROUP, made.inside(CONTROLLER, NAMESPACE)) as watch:
        yield watch


def restarts(kube: Kube, node: str) -> list[tuple[str, int]]:
    """Of the jobs' and of the agent's containers."""
    found = [*kube.get("pods", "-n", NAMESPACE)["items"], system_pod(kube, AGENT, node)]
    return [(one["metadata"]["uid"], one["status"]["containerStatuses"][0]["restartCount"]) for one in found]


def test_handoffs_go_on_while_the_kubelet_is_killed(
    made: Installation, kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch
) -> None:
    a, b = jobs
    node = made.nodes[GROUP]
    before = restarts(kube, node)
    a.control.call("acquire", 60)
    b.control.begin("acquire", 60)
    watch.until(waits("b"))
    kill_kubelet(made, node)
    killed = renewed(kube, node, "kube-node-lease")
    hand_over(jobs)
    wait_for_renewal(kube, node, "kube-node-lease", killed)
    take_turns(jobs)
    assert restarts(kube, node) == before


def test_row_30_nobody_is_granted_without_a_record_while_the_api_server_is_away(
    made: Installation, kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch
) -> None:
    a, b = jobs
    node = made.nodes[GROUP]
    a.control.call("acquire", 60)
    b.control.begin("acquire", 120)
    watch.until(waits("b"))
    token = kube.get("tsg", GROUP)["status"]["token"]
    [(agent_uid, agent_restarts)] = restarts(kube, node)[-1:]
    with api_server_away(made):
        until = time.monotonic() + AWAY_S
        a.check()
        kill_agent(made, node)
        a.process.call("busy", 20_000)
        a.control.begin("release")
        watch.until(has_condition("StoreUnavailable"))
        a.check()
        with pytest.raises(AssertionError, match="not within"):
            watch.until(is_granted("b"), until - time.monotonic())
        # The device is still a's: that it was given back is not on record.
        a.check()
        back = datetime.now(UTC)
    a.control.result()
    b.control.result()
    b.check()
    watch.until(lambda status: is_granted("b")(status) and not status["conditions"])
    recorded = kube.watch_until(lambda found: found["status"].get("lease", {}).get("job") == "b", "tsg", GROUP)
    assert recorded["status"]["token"] > token
    b.control.call("release")
    take_turns(jobs)
    agent = system_pod(kube, AGENT, node)
    [status] = agent["status"]["containerStatuses"]
    assert (agent["metadata"]["uid"], status["restartCount"]) == (agent_uid, agent_restarts + 1)
    assert datetime.fromisoformat(status["state"]["running"]["startedAt"]) < back, "it did not wait for the API server"


def test_row_29_nothing_is_missed_that_happened_while_watches_were_silent(
    made: Installation, kube: Kube, jobs: tuple[DeviceJob, DeviceJob], shared: str
) -> None:
    a, b = jobs
    node, late = made.nodes[GROUP], "late"
    label = f"group.timeslice.io/{late}"
    try:
        with pods_cut_off(made, list(made.nodes.values())):
            forget_connections(made)
            deadline = time.monotonic() + SILENCE_S + 30
            kube.call("label", "node", made.nodes["samplers"], f"{label}=true")
            kube.call("delete", "pod", "a", "-n", NAMESPACE, "--grace-period=0", "--force")
            a.process.abandon()
            kube.apply(pod(NAMESPACE, "a-again", "a", GROUP, shared))
            kube.wait("pod", "a-again", "condition=Ready", NAMESPACE)
        found = kube.watch_until(
            lambda group: group["metadata"]["name"] == late, "tsg", timeout_s=deadline - time.monotonic()
        )
        assert [one["name"] for one in found["spec"]["nodes"]] == [made.nodes["samplers"]]
    finally:
        kube.call("label", "node", made.nodes["samplers"], f"{label}-")
        kube.call("delete", "tsg", late, "--ignore-not-found")
    # The agent has heard of the new pod, or its process would be nobody's, and stay on the device.
    a.process = Process(kube, NAMESPACE, "a-again", made.inside("a-again", NAMESPACE))
    a.first_turn(3)
    with agent(kube, node) as known:
        known.until(lambda status: context(status, "a"), deadline - time.monotonic())
        b.control.call("acquire", 60)
        b.check()
        known.until(is_in("a", pb.JOB_STATE_SAVED))
        b.control.call("release")
    take_turns(jobs)
