"""A job's controller in a pod of its own, without an accelerator: it waits for its sampler and trainer, and runs the
steps.

Usage: python3 -m timeslice_demo.pod_controller [--number N] [--steps N] ..., with the job's key in $DEMO_KEY. The pod's
label timeslice.io/job-id, mounted at /etc/podinfo, says which job it is. Its log has one JSON line for each thing that
happens (see job_events.py).

The controller takes the turns for both pools, rather than each worker its own: only it knows that the trainer's pool
is kept from training to weight sync, and it can ask before the worker needs it.
"""

import argparse
import os
import signal
from types import FrameType

from timeslice import TimeSliceOrchestratorClient
from timeslice_demo.digits import make_digits
from timeslice_demo.grpo import GrpoConfig
from timeslice_demo.job import Job, emit, failures_told
from timeslice_demo.job_events import EventKind, JobSpec
from timeslice_demo.pod_meeting import open_door, receive
from timeslice_demo.recorded import Pool, job_name, make_plan
from timeslice_demo.turns import OrchestratedTurns
from timeslice_demo.worker import Worker

MIB = 2**20
PORT = 7010
STEPS = 4
MEMORY_MIB = 12
SPEED = 250.0
"""So many times that of the recorded run: about 15 s for a job alone."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="a job's controller in a pod of its own")
    parser.add_argument("--number", type=int, default=0, help="which of the demo's jobs, from 0; its random seed, too")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many (default: {STEPS})")
    parser.add_argument("--speed", type=float, default=SPEED, help=f"so many times the recorded run's ({SPEED:g})")
    parser.add_argument("--memory-mib", type=int, default=MEMORY_MIB, help=f"of each worker's device ({MEMORY_MIB})")
    parser.add_argument("--port", type=int, default=PORT, help=f"where the workers call (default: {PORT})")
    options = parser.parse_args(arguments)
    client = TimeSliceOrchestratorClient()
    if client.job_id is None:
        parser.error("nothing says which job this is: label the pod timeslice.io/job-id and mount /etc/podinfo")
    with open_door(options.port, os.environ["DEMO_KEY"].encode()) as listener:
        digits = make_digits()
        callers = receive(listener)
    workers = {pool: Worker(pool, hello.process, channel) for pool, (hello, channel) in callers.items()}
    emit(EventKind.STARTED, processes={pool: worker.process for pool, worker in workers.items()})
    spec = JobSpec(
        job=client.job_id,
        seed=options.number,
        steps=make_plan(options.number + 1, options.steps, 1 / options.speed).jobs[job_name(options.number)],
        ordinals=dict.fromkeys(Pool, 0),  # each worker sees its own device alone
        memory_bytes=options.memory_mib * MIB,
        grpo=GrpoConfig(),
    )
    job = Job(spec, digits, workers)
    try:
        with failures_told():
            groups = {pool: hello.group for pool, (hello, _) in callers.items()}
            job.prepare(lambda: OrchestratedTurns(client, groups))
            emit(EventKind.READY)
            job.run()
            job.report_result()
    finally:
        job.close()
    return 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)  # process 1 of a container has no default for it
    raise SystemExit(main())
