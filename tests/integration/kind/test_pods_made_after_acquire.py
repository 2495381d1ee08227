"""llm-d's way: a controller acquires before its job has any pod, makes pods that share a claim, and yields."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from group_watch import Controller, GroupWatch, controller, holds, waits
from installation import Installation
from job_pod import Process, claim, in_namespace, pod
from kube import Kube

MIB = 1 << 20
NAMESPACE = "rl"


@pytest.fixture
def kube(timeslice: Installation) -> Iterator[Kube]:
    objects = [claim(NAMESPACE, "samplers"), claim(NAMESPACE, "trainers"), controller(NAMESPACE)]
    with in_namespace(timeslice.kube, NAMESPACE, *objects) as kube:
        kube.wait("pod", "controller", "condition=Ready", NAMESPACE)
        yield kube


def make_pods(kube: Kube, job: str, group: str) -> list[str]:
    """Two pods of a job, made while it holds the group, and ready."""
    names = [f"{job}-{group}-{number}" for number in range(2)]
    kube.apply(*(pod(NAMESPACE, name, job, group, group) for name in names))
    for name in names:
        kube.wait("pod", name, "condition=Ready", NAMESPACE)
    return names


def test_two_jobs_of_two_pods_each_take_turns_on_two_groups(kube: Kube) -> None:
    for group in ("samplers", "trainers"):
        with (
            GroupWatch(kube, NAMESPACE, group) as watch,
            Controller(kube, NAMESPACE, "rl-a", group) as a,
            Controller(kube, NAMESPACE, "rl-b", group) as b,
        ):
            a.call("acquire", 30)
            watch.until(holds("rl-a"))
            b.begin("acquire", 120)
            watch.until(waits("rl-b"))
            pods_of_a = [Process(kube, NAMESPACE, name) for name in make_pods(kube, "rl-a", group)]
            written_a = [use(process, seed) for seed, process in enumerate(pods_of_a)]
            a.call("release")

            b.result()
            watch.until(holds("rl-b"))
            pods_of_b = [Process(kube, NAMESPACE, name) for name in make_pods(kube, "rl-b", group)]
            written_b = [use(process, seed) for seed, process in enumerate(pods_of_b, 10)]
            a.begin("acquire", 120)
            watch.until(waits("rl-a"))
            b.call("release")

            a.result()
            assert [process.call("digest", "weights") for process in pods_of_a] == written_a
            a.call("release")
            b.call("acquire", 60)
            assert [process.call("digest", "weights") for process in pods_of_b] == written_b

            # As llm-d's test ends: all pods go at once, those of the holder and those that are saved.
            kube.call("delete", "pods", "-n", NAMESPACE, "-l", "timeslice.io/job-id", "--grace-period=0", "--force")
            b.call("release")
            for process in pods_of_a + pods_of_b:
                process.abandon()
            with Controller(kube, NAMESPACE, "rl-c", group) as c:
                c.call("acquire", 60)
                assert watch.until(holds("rl-c"))["conditions"] == []
                c.call("release")


def use(process: Process, seed: int) -> str:
    """Put something on the device; its SHA-256."""
    process.call("open", 0)
    written: str = process.call("alloc", "weights", 16 * MIB, seed)
    process.call("busy", 5_000)
    return written
