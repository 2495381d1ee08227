"""The demo's side of a job: its controller process, and the stream of what happens to it."""

import contextlib
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from timeslice_demo.child_processes import Family, python_command
from timeslice_demo.job_events import EventKind, JobEvent, JobSpec
from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool
from timeslice_demo.worker import OTHER

START_LIMIT_S = 60.0
"""A controller and its workers import numpy and the CUDA bindings: 2 s here, several times that on a loaded machine."""

Listener = Callable[[str, JobEvent], None]


class JobFailed(Exception):
    """A job ended before its last step; `.reason` is a kind of worker.WorkerError."""

    def __init__(self, job: str, reason: str, text: str) -> None:
        super().__init__(f"{job}: {text}")
        self.job, self.reason = job, reason


@dataclass(slots=True)
class JobHistory:
    """All that a job has told, in order."""

    events: list[JobEvent] = field(default_factory=list)

    def of(self, kind: EventKind) -> Iterator[JobEvent]:
        return (event for event in self.events if event.kind is kind)

    def last(self, kind: EventKind) -> JobEvent:
        return [*self.of(kind)][-1]

    def first(self, kind: EventKind) -> JobEvent:
        return next(self.of(kind))

    def span(self, since: EventKind = EventKind.ASKED) -> tuple[int, int]:
        """From the first wish for a device (or the first GRANTED) to the last one given back."""
        return self.first(since).monotonic_ns, self.last(EventKind.YIELDED).monotonic_ns

    @property
    def processes(self) -> dict[Pool, ProcessId]:
        told = self.first(EventKind.STARTED).details["processes"]
        return {Pool(pool): ProcessId(*process) for pool, process in told.items()}


def whole_span(histories: Iterable[JobHistory], since: EventKind = EventKind.ASKED) -> tuple[int, int]:
    """The span of several jobs at once."""
    begins, ends = zip(*(history.span(since) for history in histories), strict=True)
    return min(begins), max(ends)


class Jobs:
    """Several jobs at once; everything they tell passes `listener` and is kept."""

    def __init__(
        self, specs: list[JobSpec], family: Family, environment: Mapping[str, str], errors: IO[str], listener: Listener
    ) -> None:
        self.histories = {spec.job: JobHistory() for spec in specs}
        self._listener = listener
        self._inbox: queue.SimpleQueue[tuple[str, JobEvent | None]] = queue.SimpleQueue()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._family = family
        self._stopped: set[str] = set()
        for spec in specs:
            process = family.start(python_command("timeslice_demo.controller"), environment, errors)
            self._processes[spec.job] = process
            assert process.stdin is not None
            process.stdin.write(spec.to_json() + "\n")
            process.stdin.flush()
            threading.Thread(
                target=self._read, args=(spec.job, process), name=f"events of {spec.job}", daemon=True
            ).start()

    def go(self, job: str) -> None:
        stdin = self._processes[job].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its stream of events says why
            stdin.write("go\n")
            stdin.flush()

    def wait_for(self, kind: EventKind, jobs: list[str], limit_s: float | None = None) -> None:
        """Take in events until each of the jobs has told one of this kind.

        Raises:
            JobFailed: a job, one of these or another, failed or ended.
        """
        missing = {job for job in jobs if not any(self.histories[job].of(kind))}
        while missing:
            try:
                job, event = self._inbox.get(timeout=limit_s)
            except queue.Empty:
                raise JobFailed(
                    min(missing), OTHER, f"not {kind} after {limit_s:.0f} s; the machine is too busy"
                ) from None
            if event is None and job in self._stopped:
                continue
            if event is None:
                status = self._processes[job].wait()
                raise JobFailed(job, OTHER, f"its controller ended with status {status} before the last step")
            self.histories[job].events.append(event)
            self._listener(job, event)
            if event.kind is EventKind.STARTED:
                self._family.adopt(process.pid for process in self.histories[job].processes.values())
            if event.kind is EventKind.FAILED:
                raise JobFailed(job, event.details["reason"], event.details["text"])
            if event.kind is kind:
                missing.discard(job)

    def stop(self, job: str) -> None:
        """End a job that is done, and its workers; return when their devices are free."""
        self._stopped.add(job)
        process = self._processes[job]
        process.terminate()
        process.wait()

    def _read(self, job: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed under us while the demo ends
            for line in process.stdout:
                self._inbox.put((job, JobEvent.from_json(line)))
        self._inbox.put((job, None))
