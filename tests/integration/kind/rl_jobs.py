"""The demo's RL jobs as pods, observed and judged as the demo observes and judges its own processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from documented import User
from forwarding import forwarded
from installation import SYSTEM, Installation
from job_pod import Process
from kube import Kube, Object
from pool_gpus import Observation, PoolGpu

from timeslice_demo.job_events import EventKind, JobEvent
from timeslice_demo.jobs import JobHistory, whole_span
from timeslice_demo.lease_log import LeaseLog
from timeslice_demo.pod_controller import SPEED, STEPS
from timeslice_demo.recorded import Pool, make_plan
from timeslice_demo.run_log import RunLog

GROUPS = {Pool.SAMPLER: "samplers", Pool.TRAINER: "trainers"}
DOCUMENTED = "rl-jobs"
"""The namespace that the docs have."""
JOBS = ("job-a", "job-b")
PLAN = make_plan(len(JOBS), STEPS, 1 / SPEED)
SAMPLE_PERIOD_S = 0.05
START_S = 120.0
RUN_S = 180.0
"""Far above what pods take to start, and both jobs to run, on a machine that has nothing else to do."""
STARTER = "starter"
"""Holds the samplers until both jobs have asked for them."""


class RlJobs:
    """What a user does with the two jobs, in a namespace that has all else that they need."""

    def __init__(self, kube: Kube, namespace: str, user: User, gpus: Mapping[Pool, PoolGpu]) -> None:
        self._kube, self._namespace, self._user, self._gpus = kube, namespace, user, gpus

    def alone(self) -> RunLog:
        """Each job alone, one after the other. What counts begins with the first grant."""
        histories: dict[str, JobHistory] = {}
        with self._observed() as observation:
            for job in JOBS:
                self._start([job])
                histories |= self._finish([job])
        segments = tuple(history.span(EventKind.GRANTED) for history in histories.values())
        return RunLog(segments, histories, observation.samples, observation.journal, ())

    def together(self) -> RunLog:
        """Both jobs at once. They begin when both have asked: pods take their time to start, and not the same."""
        with self._observed() as observation, self._lease_log() as lease_log:
            with Process(self._kube, self._namespace, self._gpus[Pool.SAMPLER].monitor) as starter:
                starter.call("join", None, STARTER, GROUPS[Pool.SAMPLER])
                starter.call("acquire", 30)
                self._start(JOBS)
                for job in JOBS:
                    lease_log.wait_for_job(job, START_S)
                starter.call("release")
            histories = self._finish(JOBS)
            group_log = tuple(entry for entry in lease_log.stop() if entry.job != STARTER)
        span = whole_span(histories.values(), EventKind.GRANTED)
        return RunLog((span,), histories, observation.samples, observation.journal, group_log)

    @contextlib.contextmanager
    def _observed(self) -> Iterator[Observation]:
        observation = Observation(self._gpus, SAMPLE_PERIOD_S)
        yield observation
        observation.stop()

    @contextlib.contextmanager
    def _lease_log(self) -> Iterator[LeaseLog]:
        with forwarded(self._kube, SYSTEM, "service/timesliceorchestrator", 50051) as target:
            yield LeaseLog(target, GROUPS)

    def _start(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._user.types(f"kubectl -n {DOCUMENTED} apply -k examples/kubernetes/{job}")

    def _finish(self, jobs: Sequence[str]) -> dict[str, JobHistory]:
        """Wait for the jobs' end, take their logs, and away with them."""
        for job in jobs:
            ended = self._kube.watch_until(
                _has_ended, "jobs", "-n", self._namespace, "--field-selector", f"metadata.name={job}-controller",
                timeout_s=RUN_S,
            )  # fmt: skip
            assert "Complete" in _conditions(ended), self._log(job)
        self._user.types(f"kubectl -n {DOCUMENTED} wait --for=condition=Complete --timeout=10m job --all")
        histories = {}
        for job in jobs:
            events = [JobEvent.from_json(line) for line in self._log(job).splitlines() if line.startswith("{")]
            histories[job] = JobHistory(events)
            of_job = {"job-a": job}
            last = self._user.types(f"kubectl -n {DOCUMENTED} logs job/job-a-controller | tail -n 1", of_job)
            assert str(histories[job].last(EventKind.FINISHED).details["weights_sha256"]) in last
            self._user.types(f"kubectl -n {DOCUMENTED} delete -k examples/kubernetes/job-a", of_job)
        return histories

    def _log(self, job: str) -> str:
        return self._kube.call("logs", f"job/{job}-controller", "-n", self._namespace, "--tail=-1")


def _conditions(job: Object) -> set[str]:
    return {one["type"] for one in job.get("status", {}).get("conditions", []) if one["status"] == "True"}


def _has_ended(job: Object) -> bool:
    return bool({"Complete", "Failed"} & _conditions(job))


def pool_gpus(kube: Kube, namespace: str, timeslice: Installation) -> dict[Pool, PoolGpu]:
    """Of both pools; their claims must be there."""
    gpus = {pool: PoolGpu(kube, namespace, pool, timeslice.nodes[group]) for pool, group in GROUPS.items()}
    for gpu in gpus.values():
        gpu.wait()
    return gpus
