"""A job's controller on one machine: it starts a sampler and a trainer process of its own, and runs the steps.

Usage: python -m timeslice_demo.controller. The first line of stdin is a JobSpec as JSON; the line "go" starts the
steps. Each thing that happens is one JSON line on stdout (see job_events.py). The end of stdin ends the job, whatever
it is doing.
"""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType

from timeslice_demo.child_processes import die_with_parent
from timeslice_demo.digits import read_digits
from timeslice_demo.job import Job, emit, failures_told
from timeslice_demo.job_events import EventKind, JobSpec
from timeslice_demo.recorded import Pool
from timeslice_demo.turns import OwnDevices, RegisteredTurns
from timeslice_demo.worker import ChildWorker


def main() -> int:
    spec = JobSpec.from_json(sys.stdin.readline())
    workers = {pool: ChildWorker(pool) for pool in Pool}
    emit(EventKind.STARTED, processes={pool: worker.process for pool, worker in workers.items()})
    job = Job(spec, read_digits(Path(spec.digits)), workers)
    try:
        with failures_told():
            pids = {pool: worker.process.pid for pool, worker in workers.items()}
            register = partial(RegisteredTurns, spec.job, spec.orchestrator, spec.agent, pids)
            job.prepare(register if spec.orchestrator else OwnDevices)
            emit(EventKind.READY)
            if sys.stdin.readline().strip() != "go":
                return 1
            threading.Thread(target=_end_when_stdin_does, name="end of stdin", daemon=True).start()
            job.run()
            job.report_result()
            # The processes stay until all jobs are done, so that each swap of the run has something to save.
            threading.Event().wait()
    finally:
        job.close()
    return 0


def _end_when_stdin_does() -> None:
    for _ in sys.stdin:
        pass
    os._exit(1)  # the demo is gone; the workers are tied to this process


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    die_with_parent()
    signal.signal(signal.SIGTERM, _terminate)
    raise SystemExit(main())
