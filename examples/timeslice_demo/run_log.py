"""All that was observed of one run, solo or time-sliced: the raw material of every figure and picture."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from timeslice_demo.ground_truth import NS, JournalLine, Lease
from timeslice_demo.job_events import EventKind
from timeslice_demo.jobs import JobHistory
from timeslice_demo.lease_log import GroupLogEntry
from timeslice_demo.nvml_samples import Sample
from timeslice_demo.phases import Phase
from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    job: str
    step: int
    phase: Phase
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run. `segments` are the times that count: one per job where the jobs ran one after the other, else one."""

    segments: tuple[tuple[int, int], ...]
    histories: Mapping[str, JobHistory]
    samples: tuple[Sample, ...]
    journal: tuple[JournalLine, ...]
    group_log: tuple[GroupLogEntry, ...]
    """What the orchestrator said of its groups; empty where there was none."""

    @property
    def wall_s(self) -> float:
        return sum(end - begin for begin, end in self.segments) / NS

    def leases(self) -> list[Lease]:
        """Who had which pool when, as the jobs saw it: acquire has returned, release is not yet called."""
        found = []
        for job, history in self.histories.items():
            since: dict[Pool, int] = {}
            for event in history.events:
                if event.kind is EventKind.GRANTED:
                    since[Pool(event.details["pool"])] = event.monotonic_ns
                elif event.kind is EventKind.YIELDING:
                    pool = Pool(event.details["pool"])
                    found.append(Lease(job, pool, since.pop(pool), event.monotonic_ns))
        return sorted(found, key=lambda lease: lease.begin_ns)

    def phases(self) -> Iterator[PhaseSpan]:
        for job, history in self.histories.items():
            began: dict[tuple[int, str], int] = {}
            for event in history.events:
                if event.kind is EventKind.PHASE_BEGAN:
                    began[event.details["step"], event.details["phase"]] = event.monotonic_ns
                elif event.kind is EventKind.PHASE_ENDED:
                    step, phase = event.details["step"], event.details["phase"]
                    yield PhaseSpan(job, step, Phase(phase), began[step, phase], event.monotonic_ns)

    def phase_sum_s(self) -> float:
        return sum(span.end_ns - span.begin_ns for span in self.phases()) / NS

    def rewards(self, job: str) -> list[float]:
        return [event.details["reward"] for event in self.histories[job].of(EventKind.REWARD)]

    def weights_sha256(self, job: str) -> str:
        return str(self.histories[job].last(EventKind.FINISHED).details["weights_sha256"])

    def accuracy(self, job: str) -> float:
        return float(self.histories[job].last(EventKind.FINISHED).details["accuracy"])

    def memory_changes(self) -> list[tuple[str, int, Pool, tuple[str, ...]]]:
        """(job, step, pool, arrays) for each phase that did not find its device memory as the last one had left it."""
        return [
            (job, event.details["step"], Pool(event.details["pool"]), tuple(event.details["arrays"]))
            for job, history in self.histories.items()
            for event in history.of(EventKind.MEMORY_CHANGED)
        ]

    def owners(self) -> dict[ProcessId, tuple[str, Pool]]:
        """The job and pool of each process that had a device."""
        return {
            process: (job, pool)
            for job, history in self.histories.items()
            for pool, process in history.processes.items()
        }
