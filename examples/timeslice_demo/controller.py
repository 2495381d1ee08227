"""A job: its controller process, which runs the steps of GRPO with a sampler and a trainer process.

Usage: python -m timeslice_demo.controller. The first line of stdin is a JobSpec as JSON; the line "go" starts the
steps. Each thing that happens is one JSON line on stdout (see job_events.py). The end of stdin ends the job, whatever
it is doing.
"""

import hashlib
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from timeslice_demo.child_processes import die_with_parent
from timeslice_demo.digits import read_digits
from timeslice_demo.grpo import Floats, Rollouts, accuracy
from timeslice_demo.job_events import EventKind, JobEvent, JobSpec
from timeslice_demo.phases import Acquire, Phase, Work, Yield, actions
from timeslice_demo.recorded import Pool
from timeslice_demo.roles import RoleConfig
from timeslice_demo.turns import OrchestratedTurns, OwnDevices, Turns
from timeslice_demo.worker import OTHER, PhaseFailed, Worker, WorkerSpec


def emit(kind: EventKind, **details: Any) -> None:
    """Tell the demo, with the time of now on the clock that the mock's journal uses, and on the one that people use."""
    print(JobEvent(kind, time.monotonic_ns(), time.time(), details).to_json(), flush=True)


class Job:
    """The steps of one job, over its two workers."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        role = RoleConfig(seed=spec.seed, ordinals=spec.ordinals, device_share=spec.device_share, grpo=spec.grpo)
        self._workers = {pool: Worker(WorkerSpec(pool, role, Path(spec.digits), Path(spec.kernels))) for pool in Pool}
        emit(EventKind.STARTED, pids={pool: worker.pid for pool, worker in self._workers.items()})
        self._turns: Turns | None = None
        self._rollouts: Rollouts | None = None
        self._weights: Floats | None = None

    def prepare(self) -> None:
        """Wait until the workers have loaded their libraries, and make them known where turns are taken."""
        for worker in self._workers.values():
            worker.result()
        if self._spec.orchestrator:
            pids = {pool: worker.pid for pool, worker in self._workers.items()}
            self._turns = OrchestratedTurns(self._spec.job, self._spec.orchestrator, self._spec.agent, pids)
        else:
            self._turns = OwnDevices()

    def run(self) -> None:
        assert self._turns is not None
        for action in actions(self._spec.steps):
            match action:
                case Acquire(pool):
                    emit(EventKind.ASKED, pool=pool)
                    self._turns.acquire(pool)
                    emit(EventKind.GRANTED, pool=pool)
                case Yield(pool):
                    emit(EventKind.YIELDING, pool=pool)
                    self._turns.give_back(pool)
                    emit(EventKind.YIELDED, pool=pool)
                case Work(step, phase, busy_s):
                    emit(EventKind.PHASE_BEGAN, step=step, phase=phase)
                    changed = self._work(step, phase, busy_s)
                    emit(EventKind.PHASE_ENDED, step=step, phase=phase)
                    for pool, names in changed.items():
                        if names:
                            emit(EventKind.MEMORY_CHANGED, step=step, pool=pool, arrays=names)

    def report_result(self) -> None:
        assert self._weights is not None
        digits = read_digits(Path(self._spec.digits))
        right = accuracy(self._spec.grpo, self._weights, digits.held_out_images, digits.held_out_labels)
        emit(EventKind.FINISHED, weights_sha256=hashlib.sha256(self._weights.tobytes()).hexdigest(), accuracy=right)

    def close(self) -> None:
        """End the workers, then leave the orchestrator."""
        for worker in self._workers.values():
            worker.close()
        if self._turns is not None:
            self._turns.close()

    def _work(self, step: int, phase: Phase, busy_s: float) -> dict[Pool, list[str]]:
        sampler, trainer = self._workers[Pool.SAMPLER], self._workers[Pool.TRAINER]
        match phase:
            case Phase.GENERATE:
                result = sampler.call("generate", step, busy_s)
                self._rollouts = result.rollouts
                assert self._rollouts is not None
                emit(EventKind.REWARD, step=step, reward=float(self._rollouts.rewards.mean()))
                return {Pool.SAMPLER: result.changed}
            case Phase.TRAIN:
                return {Pool.TRAINER: trainer.call("train", step, self._rollouts, busy_s).changed}
            case Phase.SYNC:
                giving = trainer.call("start_giving_weights", busy_s)
                self._weights = giving.weights
                assert self._weights is not None
                taking = sampler.call("take_weights", self._weights, busy_s)
                trainer.call("finish")
                return {Pool.TRAINER: giving.changed, Pool.SAMPLER: taking.changed}


def _end_when_stdin_does() -> None:
    for _ in sys.stdin:
        pass
    os._exit(1)  # the demo is gone; the workers are tied to this process


def main() -> int:
    spec = JobSpec.from_json(sys.stdin.readline())
    job = Job(spec)
    try:
        job.prepare()
        emit(EventKind.READY)
        if sys.stdin.readline().strip() != "go":
            return 1
        threading.Thread(target=_end_when_stdin_does, name="end of stdin", daemon=True).start()
        job.run()
        job.report_result()
        # The processes stay until all jobs are done, so that each swap of the run has something to save.
        threading.Event().wait()
    except PhaseFailed as error:
        emit(EventKind.FAILED, reason=error.kind, text=str(error))
        return 1
    except Exception as error:  # whatever it is, the demo must hear of it
        emit(EventKind.FAILED, reason=OTHER, text=f"{type(error).__name__}: {error}")
        return 1
    finally:
        job.close()
    return 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    import signal

    die_with_parent()
    signal.signal(signal.SIGTERM, _terminate)
    raise SystemExit(main())
