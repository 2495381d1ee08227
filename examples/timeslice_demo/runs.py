"""The two runs: each job alone, one after the other, and all jobs at once, taking turns."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from timeslice_demo.child_processes import Family, child_environment, python_command
from timeslice_demo.digits import save_digits
from timeslice_demo.grpo import GrpoConfig
from timeslice_demo.job_events import EventKind, JobSpec
from timeslice_demo.jobs import START_LIMIT_S, JobFailed, Jobs, Listener, whole_span
from timeslice_demo.lease_log import LeaseLog
from timeslice_demo.mock_gpus import MockGpus
from timeslice_demo.nvml_samples import Sample
from timeslice_demo.recorded import Plan, Pool
from timeslice_demo.run_log import RunLog
from timeslice_demo.samples_process import NvmlSampling
from timeslice_demo.services import NODE, Services
from timeslice_demo.turns import GROUPS
from timeslice_demo.worker import OTHER

ORDINALS = {Pool.SAMPLER: 0, Pool.TRAINER: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What both runs share."""

    plan: Plan
    seed: int
    libraries: Path
    devices_folder: Path
    """In memory: the simulated devices."""
    files_folder: Path
    """On a disk: the product's state and sockets, and the data set."""
    device_bytes: int
    device_share: float
    """What one process fills of its device: above a half, so that two jobs never fit."""
    sample_period_s: float


class Runs:
    """Makes the runs, one at a time; `errors` takes what the processes write to stderr."""

    def __init__(self, config: RunConfig, family: Family, errors: IO[str]) -> None:
        self._config, self._family, self._errors = config, family, errors
        self._digits = config.files_folder / "digits.npz"
        save_digits(self._digits)

    def solo(self, listener: Listener) -> RunLog:
        """Each job alone on the devices, one after the other, without orchestrator and agent."""
        gpus = self._gpus("solo")
        environment = child_environment(gpus.environment)
        jobs = Jobs(self._specs(), self._family, environment, self._errors, listener)
        names = list(jobs.histories)
        jobs.wait_for(EventKind.READY, names, START_LIMIT_S)
        with self._sampling(environment) as samples:
            for name in names:
                jobs.go(name)
                jobs.wait_for(EventKind.FINISHED, [name])
                jobs.stop(name)
        segments = tuple(history.span() for history in jobs.histories.values())
        return RunLog(segments, jobs.histories, tuple(samples), tuple(gpus.journal()), ())

    def timesliced(self, listener: Listener, faults: tuple[tuple[str, ...], ...] = ()) -> RunLog:
        """All jobs at once, through orchestrator and agent; `faults` go to the mock beforehand."""
        gpus = self._gpus("timesliced")
        environment = child_environment({**gpus.environment, "TIMESLICE_NODE": NODE})
        services = Services(self._family, self._config.files_folder, environment, ORDINALS)
        specs = [replace(spec, orchestrator=services.orchestrator, agent=services.agent) for spec in self._specs()]
        jobs = Jobs(specs, self._family, environment, self._errors, listener)
        names = list(jobs.histories)
        jobs.wait_for(EventKind.READY, names, START_LIMIT_S)
        for fault in faults:
            gpus.inject(*fault)
        lease_log = LeaseLog(services.orchestrator, GROUPS)
        with self._sampling(environment) as samples:
            for name in names:
                jobs.go(name)
                jobs.wait_for(EventKind.ASKED, [name])
                lease_log.wait_for_job(name)  # so that they queue in the order of their names
            jobs.wait_for(EventKind.FINISHED, names)
        log = RunLog(
            (whole_span(jobs.histories.values()),),
            jobs.histories,
            tuple(samples),
            tuple(gpus.journal()),
            tuple(lease_log.stop()),
        )
        for name in names:
            jobs.stop(name)
        return log

    def without_orchestrator(self, listener: Listener) -> JobFailed:
        """All jobs at once, each as if the devices were its own; returns how that ends.

        Raises:
            RuntimeError: all went well, which it cannot.
        """
        gpus = self._gpus("unordered")
        jobs = Jobs(self._specs(), self._family, child_environment(gpus.environment), self._errors, listener)
        names = list(jobs.histories)
        jobs.wait_for(EventKind.READY, names, START_LIMIT_S)
        for name in names:
            jobs.go(name)
        try:
            jobs.wait_for(EventKind.FINISHED, names)
        except JobFailed as failure:
            if failure.reason == OTHER:
                raise
            return failure
        raise RuntimeError("the jobs fitted on the devices together; device_share must be above a half")

    def _gpus(self, name: str) -> MockGpus:
        config = self._config
        swaps = [config.plan.swaps[pool] for pool in ORDINALS]
        return MockGpus(
            config.libraries, config.devices_folder / name, config.device_bytes, swaps, config.sample_period_s
        )

    def _specs(self) -> list[JobSpec]:
        config = self._config
        return [
            JobSpec(
                job=job,
                seed=config.seed + number,
                steps=steps,
                ordinals=ORDINALS,
                memory_bytes=int(config.device_bytes * config.device_share),
                grpo=GrpoConfig(),
                digits=str(self._digits),
            )
            for number, (job, steps) in enumerate(config.plan.jobs.items())
        ]

    @contextmanager
    def _sampling(self, environment: dict[str, str]) -> Iterator[list[Sample]]:
        """Fills the list that it gives when the block ends well."""
        samples: list[Sample] = []
        command = python_command("timeslice_demo.nvml_samples", str(self._config.sample_period_s))
        sampling = NvmlSampling(self._family.start(command, environment, self._errors))
        yield samples
        samples.extend(sampling.stop())
