"""Kills in the middle of things, as rows 1, 14, 15, 18 and 38 of docs/design/failures.md promise them to end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from device_jobs import (
    SHORTER_THAN_A_TIME_TO_LIVE_S,
    DeviceJob,
    after_first_turns,
    hand_over,
    pods_of_jobs,
    take_turns,
    whole_job,
)
from group_watch import GroupWatch, holds, waits
from hands import Hands
from installation import SYSTEM, Installation
from job_pod import new_claim_name, pod
from kube import Kube
from system_pods import gpu_mock

NAMESPACE = "faults"
GROUP = "trainers"


@pytest.fixture
def shared() -> str:
    """The claim of the test's pods."""
    return new_claim_name()


@pytest.fixture
def kube(timeslice: Installation, shared: str) -> Iterator[Kube]:
    with pods_of_jobs(timeslice.kube, NAMESPACE, GROUP, shared) as kube:
        yield kube


@pytest.fixture
def hands(kube: Kube) -> Hands:
    return Hands(kube, NAMESPACE)


@pytest.fixture
def node(timeslice: Installation) -> str:
    return timeslice.nodes[GROUP]


@pytest.fixture
def jobs(kube: Kube) -> Iterator[tuple[DeviceJob, DeviceJob]]:
    with after_first_turns(kube, NAMESPACE, GROUP) as jobs:
        yield jobs


@pytest.fixture
def watch(kube: Kube) -> Iterator[GroupWatch]:
    with GroupWatch(kube, NAMESPACE, GROUP) as watch:
        yield watch


def test_killed_orchestrator_comes_back_with_its_holder_and_its_waiter(
    kube: Kube, jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, hands: Hands
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    b.control.begin("acquire", 120)
    watch.until(waits("b"))
    [found] = kube.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=timesliceorchestrator")["items"]
    hands.kill(found["spec"]["nodeName"], "python3", "orchestrator")
    hand_over(jobs)


def test_killed_agent_comes_back_and_knows_what_is_saved(
    jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, hands: Hands, node: str
) -> None:
    a, b = jobs
    b.control.call("acquire", 60)
    hands.kill(node, "python3", "snapshot_agent_server")
    b.check()
    a.control.begin("acquire", 120)
    watch.until(waits("a"))
    b.control.call("release")
    a.control.result()
    a.check()
    a.control.call("release")
    take_turns(jobs)


@pytest.mark.parametrize(
    "killed", [pytest.param("snapshot_agent_server", id="row 15"), pytest.param("orchestrator", id="row 18")]
)
def test_a_switch_goes_on_whose_agent_or_orchestrator_is_killed(
    jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, kube: Kube, hands: Hands, node: str, killed: str
) -> None:
    """In the middle of a snapshot of some seconds."""
    a, b = jobs
    a.control.call("acquire", 60)
    b.control.begin("acquire", 120)
    watch.until(waits("b"))
    runs_on = node
    if killed == "orchestrator":
        [found] = kube.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=timesliceorchestrator")["items"]
        runs_on = found["spec"]["nodeName"]
    with slow_checkpoints(kube, node):
        a.control.call("release")
        watch.until(lambda status: status["state"] == "SWITCHING")
        hands.kill(runs_on, "python3", killed)
        b.control.result()
    b.check()
    b.control.call("release")
    take_turns(jobs)
    watch.until(lambda status: not status["conditions"])


@contextlib.contextmanager
def slow_checkpoints(kube: Kube, node: str) -> Iterator[None]:
    def inject(seconds: int) -> None:
        for device in range(2):
            gpu_mock(kube, node, "inject", "slow", f"device={device}", f"checkpoint={seconds}")

    inject(3)
    try:
        yield
    finally:
        inject(0)  # a setting, which --clear leaves


def test_row_1_a_killed_holder_lets_the_next_one_go_on_at_once(
    jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, kube: Kube, shared: str, node: str
) -> None:
    _, b = jobs
    kube.apply(pod(NAMESPACE, "c", "c", GROUP, shared))
    kube.wait("pod", "c", "condition=Ready", NAMESPACE)
    with whole_job(kube, NAMESPACE, "c", node) as process:
        b.control.begin("acquire", 60)
        watch.until(waits("b"))
        pid = process.call("pid")
        killed_at = time.monotonic()
        kube.exec("c", NAMESPACE, "kill", "-9", str(pid))
        b.control.result()
        assert time.monotonic() - killed_at < SHORTER_THAN_A_TIME_TO_LIVE_S
    b.check()
    b.control.call("release")
    take_turns(jobs)


def test_killed_process_of_the_holder_lets_the_next_one_go_on(
    jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, kube: Kube
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    b.control.begin("acquire", 120)
    watch.until(waits("b"))
    pid = a.process.call("pid")
    kube.exec("a", NAMESPACE, "kill", "-9", str(pid))
    a.control.call("release")
    b.control.result()
    b.check()
    b.control.call("release")


def test_pod_deleted_in_the_middle_of_its_snapshot_is_no_fault(
    jobs: tuple[DeviceJob, DeviceJob], watch: GroupWatch, kube: Kube, timeslice: Installation
) -> None:
    a, b = jobs
    a.control.call("acquire", 60)
    with slow_checkpoints(kube, timeslice.nodes[GROUP]):
        b.control.begin("acquire", 120)
        watch.until(waits("b"))
        a.control.call("release")
        watch.until(lambda status: status["state"] == "SWITCHING")
        kube.call("delete", "pod", "a", "-n", NAMESPACE, "--grace-period=0", "--force")
        b.control.result()
        b.check()
        assert watch.until(holds("b"))["conditions"] == []
    b.control.call("release")
