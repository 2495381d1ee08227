"""How long each phase and each swap of the recorded run took, and a plan for our jobs made from it by one scale.

The figures stand in recorded_run.json, with their source. Nothing else of the demo's timing is chosen by hand.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any


class Pool(StrEnum):
    """The two groups."""

    SAMPLER = "sampler"
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job: how long its three phases keep their devices busy."""

    generate_s: float
    train_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class Swap:
    """What it takes to save one job's device memory, and then to bring back another's."""

    save_s: float
    restore_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All the timing of a run, scaled."""

    jobs: Mapping[str, tuple[Step, ...]]
    swaps: Mapping[Pool, Swap]

    @property
    def solo_s(self) -> float:
        """The phases of all jobs, one after the other."""
        return sum(step.generate_s + step.train_s + step.sync_s for steps in self.jobs.values() for step in steps)

    def load_s(self, pool: Pool) -> float:
        """What one pool has to do for all jobs, without a swap: no schedule is shorter."""
        return sum(
            step.sync_s + (step.generate_s if pool is Pool.SAMPLER else step.train_s)
            for steps in self.jobs.values()
            for step in steps
        )


def recorded_run() -> dict[str, Any]:
    """The figures as they stand in the data file."""
    text = resources.files(__package__).joinpath("recorded_run.json").read_text(encoding="utf-8")
    run: dict[str, Any] = json.loads(text)
    return run


def make_plan(jobs: int, steps: int, scale: float) -> Plan:
    """Give each job the recorded figures of job A or B (in turn), beginning with the first whole step, `scale` times
    as long.

    Further jobs than two repeat A and B, shifted by a step each time, so that no two jobs are alike.
    """
    run = recorded_run()
    recorded = list(run["jobs"].values())
    sync_s = run["sync_s"] * scale
    plan: dict[str, tuple[Step, ...]] = {}
    for number in range(jobs):
        figures = recorded[number % len(recorded)]
        lengths = list(zip(figures["generate_s"], figures["train_s"], strict=True))
        shift = number // len(recorded)
        chosen = [lengths[(step + shift) % len(lengths)] for step in range(steps)]
        plan[job_name(number)] = tuple(
            Step(generate_s * scale, train_s * scale, sync_s) for generate_s, train_s in chosen
        )
    swaps = {Pool(name): Swap(swap["save_s"] * scale, swap["restore_s"] * scale) for name, swap in run["swaps"].items()}
    return Plan(plan, swaps)


def job_name(number: int) -> str:
    return f"job-{chr(ord('a') + number)}"
