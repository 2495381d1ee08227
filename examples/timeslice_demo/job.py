"""A job: the steps of GRPO over a sampler and a trainer, wherever these are, told as events on stdout."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from timeslice_demo.digits import Digits
from timeslice_demo.grpo import Floats, Rollouts, accuracy
from timeslice_demo.job_events import EventKind, JobEvent, JobSpec
from timeslice_demo.phases import Acquire, Phase, Work, Yield, actions
from timeslice_demo.recorded import Pool
from timeslice_demo.roles import RoleConfig
from timeslice_demo.turns import Turns
from timeslice_demo.worker import OTHER, PhaseFailed, Worker


def emit(kind: EventKind, **details: Any) -> None:
    """Tell the demo, with the time of now on the clock that the mock's journal uses, and on the one that people use."""
    print(JobEvent(kind, time.monotonic_ns(), time.time(), details).to_json(), flush=True)


@contextmanager
def failures_told() -> Iterator[None]:
    """Whatever goes wrong in the block is told, and ends the program with status 1."""
    try:
        yield
    except PhaseFailed as error:
        emit(EventKind.FAILED, reason=error.kind, text=str(error))
        raise SystemExit(1) from None
    except Exception as error:  # whatever it is, who follows the job must hear of it
        emit(EventKind.FAILED, reason=OTHER, text=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


class Job:
    """The steps of one job, over its two workers."""

    def __init__(self, spec: JobSpec, digits: Digits, workers: Mapping[Pool, Worker]) -> None:
        self._spec, self._digits, self._workers = spec, digits, workers
        self._turns: Turns | None = None
        self._rollouts: Rollouts | None = None
        self._weights: Floats | None = None

    def prepare(self, make_turns: Callable[[], Turns]) -> None:
        """Return when the workers have what they need, and turns can be taken."""
        spec = self._spec
        role = RoleConfig(seed=spec.seed, ordinals=spec.ordinals, memory_bytes=spec.memory_bytes, grpo=spec.grpo)
        for worker in self._workers.values():
            worker.prepare(role, self._digits)
        for worker in self._workers.values():
            worker.result()
        self._turns = make_turns()

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
        digits = self._digits
        right = accuracy(self._spec.grpo, self._weights, digits.held_out_images, digits.held_out_labels)
        emit(EventKind.FINISHED, weights_sha256=hashlib.sha256(self._weights.tobytes()).hexdigest(), accuracy=right)

    def close(self) -> None:
        """End the workers, then leave the orchestrator. A second call does nothing."""
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
