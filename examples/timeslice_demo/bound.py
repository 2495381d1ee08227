"""The makespan of the same jobs under the same policy when orchestration costs nothing: what the demo's own run is
held against.

The orchestrator's production core plays the jobs on virtual time; its agents take exactly the planned swap times, and
every other message takes none. (The tests hold this against a second simulation that shares no code with it.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator import simulate as core
from timeslice_demo.phases import Acquire, Action, Work, Yield, actions
from timeslice_demo.recorded import Pool, Step, Swap


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the simulation says."""

    makespan_s: float
    swaps: Mapping[Pool, int]
    """How often each pool's device was saved."""


def simulate(jobs: Mapping[str, tuple[Step, ...]], swaps: Mapping[Pool, Swap]) -> Schedule:
    """Play all jobs from time 0; a job that is named earlier asks first where two ask at the same time."""
    programs = [core.Program(job, [_action(action) for action in actions(steps)]) for job, steps in jobs.items()]
    result = core.simulate(
        programs, {pool.value: core.SwapTimes(swap.save_s, swap.restore_s) for pool, swap in swaps.items()}
    )
    saves = [segment.group for segment in result.timeline if segment.kind == "snapshot"]
    return Schedule(result.makespan_s, {pool: saves.count(pool.value) for pool in Pool})


def _action(action: Action) -> core.Action:
    match action:
        case Acquire(pool):
            return core.Acquire(pool.value)
        case Yield(pool):
            return core.Yield(pool.value)
        case Work(busy_s=busy_s, phase=phase):
            return core.Work(busy_s, phase.value)
