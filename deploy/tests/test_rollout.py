"""How far a rollout is, and why a pod does not get on."""

from __future__ import annotations

from typing import Any

import pytest

from timeslice_deploy.rollout import Seen, progress, trouble, troubles


def deployment(generation: int = 2, **status: int) -> Any:
    return {"kind": "Deployment", "metadata": {"generation": generation}, "spec": {"replicas": 1}, "status": status}


def daemonset(generation: int = 2, **status: int) -> Any:
    return {"kind": "DaemonSet", "metadata": {"generation": generation}, "spec": {}, "status": status}


DONE = {"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1, "replicas": 1}


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (deployment(**DONE), (1, 1, True)),
        (deployment(generation=3, **DONE), (0, 1, False)),  # the controller has not seen the newest template yet
        (deployment(**{**DONE, "updatedReplicas": 0}), (0, 1, False)),  # an old pod still serves
        (deployment(**{**DONE, "replicas": 2}), (1, 1, False)),
        (deployment(**{**DONE, "availableReplicas": 0}), (0, 1, False)),
        (deployment(), (0, 1, False)),
        (
            daemonset(observedGeneration=2, desiredNumberScheduled=3, updatedNumberScheduled=3, numberAvailable=3),
            (3, 3, True),
        ),
        (
            daemonset(observedGeneration=2, desiredNumberScheduled=3, updatedNumberScheduled=1, numberAvailable=2),
            (1, 3, False),
        ),
        (daemonset(observedGeneration=1, desiredNumberScheduled=3, updatedNumberScheduled=3), (0, 3, False)),
        (daemonset(observedGeneration=2), (0, 0, True)),  # no node has the label
    ],
)
def test_progress(workload: Any, told: tuple[int, int, bool]) -> None:
    assert progress(workload) == told


def pod(name: str = "p", **status: Any) -> Any:
    return {"metadata": {"name": name}, "spec": {"nodeName": "n1"}, "status": status}


def container(**state: Any) -> Any:
    last = {"lastState": {"terminated": state.pop("last")}} if "last" in state else {}
    return {"containerStatuses": [{"name": "c", "state": state, **last}]}


READY = {"conditions": [{"type": "Ready", "status": "True"}]}
CRASHED = {"exitCode": 2, "message": "first line\norchestrator: no such flag\n"}


@pytest.mark.parametrize(
    ("one", "warnings", "told"),
    [
        (pod(**READY), {}, None),
        (pod(phase="Succeeded"), {}, None),
        (pod(**container(waiting={"reason": "ContainerCreating"})), {}, "starting"),
        (
            pod(**container(waiting={"reason": "ContainerCreating"})),
            {"p": 'FailedMount: secret "snapshot-agent-tls" not found'},
            'FailedMount: secret "snapshot-agent-tls" not found',
        ),
        (pod(**container(running={})), {}, "running, not ready yet"),
        (
            pod(**container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 40s"}, last=CRASHED)),
            {},
            "container c: CrashLoopBackOff; ended with status 2: orchestrator: no such flag",
        ),
        (pod(**container(terminated={"exitCode": 137, "reason": "OOMKilled"})), {}, "ended with status 137: OOMKilled"),
        (
            pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes fit"}]),
            {},
            "not scheduled: 0/3 nodes fit",
        ),
    ],
)
def test_the_reason_is_the_nearest_to_the_cause(one: Any, warnings: dict[str, str], told: str | None) -> None:
    found = trouble(one, warnings)
    assert (found is None) == (told is None)
    assert found is None or str(told) in found


def test_an_image_that_is_not_there_comes_with_what_to_do() -> None:
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        told = trouble(pod(**container(waiting={"reason": reason, "message": "a page of text"})), {})
        assert told is not None
        assert "//images:load" in told
        assert "--registry" in told


def test_a_pod_on_its_way_out_is_no_trouble() -> None:
    leaving = pod(**container(terminated={"exitCode": 1}))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert troubles(Seen(pods={"p": leaving, "q": pod("q", **READY)})) == []


def test_lines_are_short_and_name_pod_and_node() -> None:
    told = troubles(Seen(pods={"p": pod(**container(waiting={"reason": "Odd", "message": "long\n" * 500}))}))
    assert len(told) == 1
    assert told[0].startswith("pod p on n1: container c: Odd")
    assert len(told[0]) < 400
    assert "\n" not in told[0]
