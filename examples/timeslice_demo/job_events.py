"""What a controller is told, and what it tells: the lines between the demo and a job."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from timeslice_demo.grpo import GrpoConfig
from timeslice_demo.recorded import Pool, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """All that a controller needs."""

    job: str
    seed: int
    steps: tuple[Step, ...]
    ordinals: dict[Pool, int]
    memory_bytes: int
    """Of device memory, for the sampler and for the trainer."""
    grpo: GrpoConfig
    digits: str = ""
    """Path of the data set; empty: the controller makes it."""
    orchestrator: str = ""
    """Address; empty: the devices are the job's own."""
    agent: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> "JobSpec":
        fields = json.loads(line)
        fields["steps"] = tuple(Step(**step) for step in fields["steps"])
        fields["ordinals"] = {Pool(pool): ordinal for pool, ordinal in fields["ordinals"].items()}
        fields["grpo"] = GrpoConfig(**fields["grpo"])
        return JobSpec(**fields)


class EventKind(StrEnum):
    """What can happen to a job; in brackets, what its event tells besides."""

    STARTED = "started"
    """The processes exist (processes: pool to ProcessId)."""
    READY = "ready"
    ASKED = "asked"
    """About to call acquire (pool)."""
    GRANTED = "granted"
    """Acquire has returned (pool)."""
    YIELDING = "yielding"
    """About to call release (pool)."""
    YIELDED = "yielded"
    """Release has returned (pool)."""
    PHASE_BEGAN = "phase_began"
    """(step, phase)"""
    PHASE_ENDED = "phase_ended"
    """(step, phase)"""
    REWARD = "reward"
    """The mean reward of a step's answers (step, reward)."""
    MEMORY_CHANGED = "memory_changed"
    """Device memory is not what the last phase left (step, pool, arrays)."""
    FINISHED = "finished"
    """All steps are done (weights_sha256, accuracy)."""
    FAILED = "failed"
    """(reason: a kind of WorkerError, text)"""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line: monotonic_ns is CLOCK_MONOTONIC of the moment, wall_s the time of day."""

    kind: EventKind
    monotonic_ns: int
    wall_s: float
    details: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> "JobEvent":
        fields = json.loads(line)
        return JobEvent(EventKind(fields["kind"]), fields["monotonic_ns"], fields["wall_s"], fields["details"])
