"""Some minutes of random kills under four jobs on two groups, judged by what the mocks wrote down.

TIMESLICE_SOAK_S: how long (default 180). TIMESLICE_SOAK_SEED: which kills; each run says its own.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from group_watch import CONTROLLER, GroupWatch, controller
from hands import Hands
from installation import SYSTEM, Installation
from job_pod import HERE, claim, code, in_namespace, new_claim_name, pod
from kube import Kube, Object
from soak_leases import finished, leases, lives, pool, united, unshared
from system_pods import AGENT, gpu_mock

from timeslice_demo.ground_truth import LOCK, judge, read_journal
from timeslice_kind.progress import say

NAMESPACE = "soak"
ORCHESTRATOR = "timesliceorchestrator"
JOBS = {"samplers": ("a", "b"), "trainers": ("c", "d")}
SOAK_S = float(os.environ.get("TIMESLICE_SOAK_S", "180"))
SEED = int(os.environ.get("TIMESLICE_SOAK_SEED") or random.SystemRandom().randrange(1 << 32))
PAUSE_S = (2.0, 7.0)
"""Between two faults: less than what it takes to recover from some of them."""
RECOVERY_S = 90.0
"""After the last fault, until every job has had its turns again."""
HANDED_ON = "of the same job gave the group back"
"""Told to a pod that shared the lease of the one that it replaces (row 41): they overlap while the old one goes."""

NOT_THERE_YET = "UNAVAILABLE: no orchestrator answers"
"""What a client is told that starts while there is none; the job asks again. Who has had an answer once waits."""
FOLDER = "/run/timeslice-soak"
"""On the nodes: what jobs write down outlives their pods there."""


@pytest.fixture
def kube(timeslice: Installation) -> Iterator[Kube]:
    claims = {group: new_claim_name() for group in JOBS}
    program = (HERE / "soak_job.py").read_text()
    made = code(NAMESPACE)
    made["data"]["soak_job.py"] = program
    objects = [claim(NAMESPACE, name) for name in claims.values()]
    with in_namespace(timeslice.kube, NAMESPACE, *objects, controller(NAMESPACE)) as kube:
        kube.apply(made)
        hands = Hands(kube, NAMESPACE)
        try:
            for group, node in timeslice.nodes.items():
                hands.run(node, "mkdir", "-p", f"/host{FOLDER}")
                kube.apply(*(deployment(job, group, claims[group]) for job in JOBS[group]))
            kube.wait("pod", CONTROLLER, "condition=Ready", NAMESPACE)
            for group, jobs in JOBS.items():
                for job in jobs:
                    kube.wait("deployment", name_of(job, group), "condition=Available", NAMESPACE, timeout_s=120)
            yield kube
        finally:
            for node in timeslice.nodes.values():
                hands.run(node, "rm", "-r", f"/host{FOLDER}")


def name_of(job: str, group: str) -> str:
    return f"{job}-{group}"


def deployment(job: str, group: str, shared: str) -> Object:
    """One pod of a job in a group, which comes again when it is deleted."""
    made = pod(NAMESPACE, "", job, group, shared, ["python3", "/code/soak_job.py", FOLDER, job, group])
    [container] = made["spec"]["containers"]
    container["volumeMounts"].append({"name": "diary", "mountPath": FOLDER})
    container["securityContext"] = {"runAsUser": 0}
    made["spec"]["volumes"].append({"name": "diary", "hostPath": {"path": FOLDER}})
    made["spec"]["restartPolicy"] = "Always"
    labels = made["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name_of(job, group), "namespace": NAMESPACE},
        "spec": {
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": made["spec"]},
        },
    }


class Faults:
    """Each is said, so that a run can be told from its log."""

    def __init__(self, made: Installation, kube: Kube, random: random.Random) -> None:
        self._nodes = made.nodes
        self._kube = kube
        self._hands = Hands(kube, NAMESPACE)
        self._random = random
        self.done: list[str] = []

    def strike(self) -> None:
        kinds: list[Callable[[], str]] = [self.orchestrator, self.agent, self.process, self.process, self.pod, self.pod]
        self.done.append(self._random.choice(kinds)())
        say(f"soak: {self.done[-1]}")

    def orchestrator(self) -> str:
        return self._replace_or_kill(ORCHESTRATOR, "orchestrator", None)

    def agent(self) -> str:
        return self._replace_or_kill(AGENT, "snapshot_agent_server", self._random.choice(sorted(self._nodes.values())))

    def process(self) -> str:
        group, job = self._job()
        return self._kill(self._nodes[group], "soak_job.py", "turns", job, group)

    def pod(self) -> str:
        group, job = self._job()
        how = self._random.choice([["--wait=false"], ["--grace-period=0", "--force"]])
        labels = f"timeslice.io/job-id={job},timeslice.io/group={group}"
        self._kube.call("delete", "pod", "-n", NAMESPACE, "-l", labels, *how)
        return f"deleted the pod of {job} in {group} {how[0]}"

    def _job(self) -> tuple[str, str]:
        return self._random.choice([(group, job) for group, jobs in JOBS.items() for job in jobs])

    def _replace_or_kill(self, app: str, module: str, node: str | None) -> str:
        """kill -9, but once per pod: the kubelet makes a container wait longer each time that it ends."""
        found = [
            one
            for one in self._kube.get("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={app}")["items"]
            if node in (None, one["spec"].get("nodeName")) and "deletionTimestamp" not in one["metadata"]
        ]
        statuses = [status for one in found for status in one["status"].get("containerStatuses", ())]
        if len(found) == 1 and statuses and statuses[0]["restartCount"] == 0:
            return self._kill(found[0]["spec"]["nodeName"], "python3", module)
        for one in found:
            name = one["metadata"]["name"]
            self._kube.call("delete", "pod", name, "-n", SYSTEM, "--grace-period=0", "--force", "--ignore-not-found")
        return f"replaced the pod of {app}"

    def _kill(self, node: str, *words: str) -> str:
        try:
            self._hands.kill(node, *words)
        except AssertionError as error:
            return f"nobody to kill: {error}"  # it is about to start
        return f"killed {' '.join(words)} on {node}"


def until_all_have_had_turns(watch: GroupWatch, jobs: tuple[str, ...], turns: int, deadline: float) -> None:
    had: dict[str, set[int]] = {job: set() for job in jobs}

    def seen(status: dict[str, Any]) -> bool:
        if status["state"] == "LOCKED" and status["holder"] in had:
            had[status["holder"]].add(status["fencing_token"])
        return all(len(tokens) >= turns for tokens in had.values())

    watch.until(seen, deadline - time.monotonic())


def test_random_kills_lose_nothing(timeslice: Installation, kube: Kube) -> None:
    say(f"soak: {SOAK_S:.0f} s, TIMESLICE_SOAK_SEED={SEED}")
    began_ns = time.monotonic_ns()
    faults = Faults(timeslice, kube, chance := random.Random(SEED))
    end = time.monotonic() + SOAK_S
    while time.monotonic() < end:
        faults.strike()
        time.sleep(chance.uniform(*PAUSE_S))

    deadline = time.monotonic() + RECOVERY_S
    for group, jobs in JOBS.items():
        with GroupWatch(kube, NAMESPACE, group) as watch:
            until_all_have_had_turns(watch, jobs, 3, deadline)
    kube.call("delete", "deployments", "--all", "-n", NAMESPACE, "--cascade=foreground", "--timeout=60s", timeout_s=70)
    for group in JOBS:
        with GroupWatch(kube, NAMESPACE, group) as watch:
            watch.until(lambda status: status["state"].startswith("IDLE") and not status["conditions"])

    for group, node in timeslice.nodes.items():
        text = Hands(kube, NAMESPACE).run(node, "sh", "-c", f"cat /host{FOLDER}/*.{group}.*")
        own = lives(text)
        journal = [line for line in read_journal(gpu_mock(kube, node, "journal", "--json")) if line.begin_ns > began_ns]
        journal = finished(journal, own)
        told = leases(own, journal)
        alone = unshared(told)
        certain = [one.certain for one in alone]
        assert all(first.held.end_ns <= second.held.begin_ns for first, second in itertools.pairwise(alone))
        owners = {life.process: (life.job, pool(group)) for life in own}
        [device] = {line.device for line in journal if line.device is not None and line.process in owners}
        ordinals = {pool(group): device}
        verdict = judge(journal, united([one.held for one in told]), owners, ordinals)
        locked = judge(journal, certain, owners, ordinals).locks_during_lease
        failures = [
            note["error"]
            for life in own
            for note in life.notes
            if note["what"] == "failed" and NOT_THERE_YET not in note["error"] and HANDED_ON not in note["error"]
        ]
        say(
            f"soak: {group}: {len(told)} leases of {len(own)} processes, {verdict.device_s:.1f} s of device time,"
            f" {len(failures)} failed calls {sorted(set(failures))[:5]}, locked in {locked} of {len(certain)} leases,"
            f" {verdict}"
        )
        assert [note for life in own for note in life.notes if note["what"] == "corrupt"] == []
        lost = [note["text"] for life in own for note in life.notes if note["what"] == "lost"]
        assert [text for text in lost if HANDED_ON not in text] == []
        assert (verdict.device_s_without_lease, verdict.touches_without_lease) == (0, 0), verdict.examples
        assert locked == 0, [
            (line, lease)
            for line in journal
            for lease in certain
            if line.kind == LOCK
            and line.process in owners
            and owners[line.process][0] == lease.job
            and lease.begin_ns <= line.begin_ns < lease.end_ns
        ]
        assert verdict.device_s > 0
        assert not failures
