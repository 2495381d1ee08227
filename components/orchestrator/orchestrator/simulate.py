"""Virtual time over the production core: what the same policy makes of given phases and swaps without any overhead.

`simulate` runs the jobs' programs against `core.Orchestrator` with agents whose snapshots and restores take exactly the
times given and whose every other message takes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acquire:
    """Wait for a group and take it."""

    group: str


@dataclass(frozen=True, slots=True)
class Work:
    """Let time pass, holding whatever is held."""

    duration_s: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Yield:
    """Give a group back."""

    group: str


Action = Acquire | Work | Yield


@dataclass(frozen=True, slots=True)
class Program:
    """What one job does, in order; all jobs start at 0."""

    job: str
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """How long the agent of a group's node takes to save and to bring back one context of `job` (None: of any job)."""

    snapshot_s: float
    restore_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a group's time; `kind` is "held", "snapshot" or "restore"."""

    group: str
    job: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came out of it."""

    makespan_s: float
    finished_s: Mapping[str, float]
    """When each job was done."""
    timeline: tuple[Segment, ...]
    handoffs: int
