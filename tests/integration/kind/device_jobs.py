"""Jobs that take turns: each with a process in its pod that has memory on a device, and a controller elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from agent_calls import agent, context
from group_watch import CONTROLLER, Controller, controller
from installation import Installation
from job_pod import Process, claim, in_namespace, pod
from kube import Kube

MIB = 1 << 20
SHORTER_THAN_A_TIME_TO_LIVE_S = 15.0
"""Sessions live 30 s on without a word: what took less did not wait for that."""


class DeviceJob:
    """The job of the pod of the same name. Both its sides are told what to do by `kubectl exec`, or on their nodes."""

    def __init__(self, kube: Kube, namespace: str, name: str, group: str, on_nodes: Installation | None = None) -> None:
        """`on_nodes`: it has to go on without kubelet or API server."""

        def inside(pod: str) -> list[str] | None:
            return on_nodes.inside(pod, namespace) if on_nodes else None

        self.name = name
        self.control = Controller(kube, namespace, name, group, inside(CONTROLLER))
        self.process = Process(kube, namespace, name, inside(name))
        self.written = ""

    def first_turn(self, seed: int) -> None:
        self.control.call("acquire", 60)
        self.process.call("open", 0)
        self.written = self.process.call("alloc", "weights", 16 * MIB, seed)
        self.control.call("release")

    def check(self) -> None:
        """While it holds: what it wrote is there."""
        assert self.process.call("digest", "weights") == self.written

    def end(self) -> None:
        self.control.abandon()
        self.process.abandon()


@contextlib.contextmanager
def whole_job(kube: Kube, namespace: str, pod: str, node: str) -> Iterator[Process]:
    """A process in this pod, whose job is named like it, that speaks for its job itself: it holds its group, and has
    memory on the device. The agent has seen it: it looks each 250 ms, and of whom it never saw it can tell no end."""
    process = Process(kube, namespace, pod)
    process.call("join", None, None, None)
    process.call("acquire", 60)
    process.call("open", 0)
    process.call("alloc", "weights", 16 * MIB, 4)
    with agent(kube, node) as known:
        known.until(lambda status: context(status, pod))
    yield process
    process.abandon()


@contextlib.contextmanager
def pods_of_jobs(kube: Kube, namespace: str, group: str, shared: str) -> Iterator[Kube]:
    """A namespace with ready pods of the jobs a and b, which share a claim that is made here, and of a controller."""
    with in_namespace(kube, namespace, claim(namespace, shared), controller(namespace)):
        kube.apply(*(pod(namespace, job, job, group, shared) for job in ("a", "b")))
        for name in (CONTROLLER, "a", "b"):
            kube.wait("pod", name, "condition=Ready", namespace)
        yield kube


@contextlib.contextmanager
def after_first_turns(
    kube: Kube, namespace: str, group: str, on_nodes: Installation | None = None
) -> Iterator[tuple[DeviceJob, DeviceJob]]:
    """Jobs a and b of `pods_of_jobs`: the memory of a is saved, b's is on the device."""
    a, b = (DeviceJob(kube, namespace, name, group, on_nodes) for name in ("a", "b"))
    a.first_turn(1)
    b.first_turn(2)
    yield a, b
    a.end()
    b.end()


def take_turns(jobs: Sequence[DeviceJob], turns: int = 2) -> None:
    """Nothing is lost, and nobody is stuck."""
    for _ in range(turns):
        for job in jobs:
            job.control.call("acquire", 60)
            job.check()
            job.control.call("release")


def hand_over(jobs: tuple[DeviceJob, DeviceJob]) -> None:
    """The first one holds and the second one waits: they go on as if nothing had been."""
    holder, waiter = jobs
    holder.check()
    holder.control.call("release")
    waiter.control.result()
    waiter.check()
    waiter.control.call("release")
    take_turns(jobs)
