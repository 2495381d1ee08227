"""What a job does, in which order, as data: the controller carries it out, the simulation plays it on virtual time.

A step is generate (sampler pool), train (trainer pool), weight sync (both pools). The trainer pool is kept from train
to sync, and the sampler pool is asked for in its midst: trainer first, then sampler. They are given back in the
opposite order.

Why this cannot deadlock: only a job that holds the trainer pool ever waits for the sampler pool while holding
something, and a job that holds the sampler pool for generating gives it back before it asks for the trainer pool. So
whoever waits while holding waits for somebody who waits for nobody. (In the very first step a job asks for the
sampler pool with empty hands.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from timeslice_demo.recorded import Pool, Step


class Phase(StrEnum):
    GENERATE = "generate"
    TRAIN = "train"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Acquire:
    pool: Pool


@dataclass(frozen=True, slots=True)
class Yield:
    pool: Pool


@dataclass(frozen=True, slots=True)
class Work:
    """Keep the phase's pools busy for `busy_s`."""

    step: int
    phase: Phase
    busy_s: float


Action = Acquire | Yield | Work


def actions(steps: tuple[Step, ...]) -> Iterator[Action]:
    """Everything a job does, in order."""
    for number, step in enumerate(steps):
        yield Acquire(Pool.SAMPLER)
        yield Work(number, Phase.GENERATE, step.generate_s)
        yield Yield(Pool.SAMPLER)
        yield Acquire(Pool.TRAINER)
        yield Work(number, Phase.TRAIN, step.train_s)
        yield Acquire(Pool.SAMPLER)
        yield Work(number, Phase.SYNC, step.sync_s)
        yield Yield(Pool.SAMPLER)
        yield Yield(Pool.TRAINER)
