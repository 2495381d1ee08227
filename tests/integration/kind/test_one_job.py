"""One job, then two, as pods that share a claim: the whole path on a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from installation import Installation
from job_pod import Process, claim, in_namespace, pod
from kube import Kube
from system_pods import gpu_mock

MIB = 1 << 20
NAMESPACE = "one-job"


@pytest.fixture
def kube(timeslice: Installation) -> Iterator[Kube]:
    with in_namespace(timeslice.kube, NAMESPACE, claim(NAMESPACE, "one"), claim(NAMESPACE, "two")) as kube:
        yield kube


def start(kube: Kube, shared: str, *names: str) -> None:
    """Pods of jobs with the pods' names that share a claim, ready; each test takes a claim that no other one had."""
    kube.apply(*(pod(NAMESPACE, name, name, "trainers", shared) for name in names))
    for name in names:
        kube.wait("pod", name, "condition=Ready", NAMESPACE, timeout_s=60)


def test_job_holds_works_and_yields(kube: Kube) -> None:
    start(kube, "one", "a")
    with Process(kube, NAMESPACE, "a") as process:
        process.call("join", None, None, None)
        process.call("acquire", 30)
        process.call("open", 0)
        written = process.call("alloc", "weights", 20 * MIB, 1)
        process.call("busy", 10_000)
        assert process.call("release")
        process.call("acquire", 30)
        assert process.call("digest", "weights") == written
        process.call("release")


def test_two_jobs_take_turns_and_keep_their_contents(kube: Kube, timeslice: Installation) -> None:
    turns = 4
    start(kube, "two", "a", "b")
    with Process(kube, NAMESPACE, "a") as a, Process(kube, NAMESPACE, "b") as b:
        jobs = {"a": a, "b": b}
        written = {}
        for seed, (name, process) in enumerate(jobs.items()):
            process.call("join", None, None, None)
            process.call("acquire", 30)
            process.call("open", 0)
            written[name] = process.call("alloc", "weights", 20 * MIB, seed)
            process.call("release")
        for _ in range(turns):
            for name, process in jobs.items():
                process.call("acquire", 30)
                assert process.call("digest", "weights") == written[name]
                process.call("busy", 5_000)
                process.call("release")
    states = [record["kind"] for record in journal(kube, timeslice.nodes["trainers"])]
    assert states.count("checkpoint") >= 2 * turns - 1, "they would have been on the device together"
    assert states.count("restore") >= 2 * turns - 1


def journal(kube: Kube, node: str) -> list[dict[str, object]]:
    """What the mocks of a node wrote down."""
    text = gpu_mock(kube, node, "journal", "--json")
    return [json.loads(line) for line in text.splitlines()]
