"""A second simulation of the demo's policy, with no line in common with the product: the bound must not judge itself.

Event-driven, on virtual time: first come first served, and strict swaps (the leaving job is saved, then the coming
one is brought back; the first visit brings nothing back; a pool that nobody waits for keeps its last job's memory).
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from timeslice_demo.phases import Acquire, Action, Work, Yield, actions
from timeslice_demo.recorded import Pool, Step, Swap


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the simulation says."""

    makespan_s: float
    swaps: Mapping[Pool, int]


@dataclass(slots=True)
class _PoolState:
    swap: Swap
    holder: str | None = None
    resident: str | None = None
    saved: set[str] = field(default_factory=set)
    waiting: deque[str] = field(default_factory=deque)
    swaps: int = 0


def simulate(jobs: Mapping[str, tuple[Step, ...]], swaps: Mapping[Pool, Swap]) -> Schedule:
    """Play all jobs from time 0; a job that is named earlier asks first where two ask at the same time."""
    return _Simulation(jobs, swaps).run()


class _Simulation:
    def __init__(self, jobs: Mapping[str, tuple[Step, ...]], swaps: Mapping[Pool, Swap]) -> None:
        self._now = 0.0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._pools = {pool: _PoolState(swaps[pool]) for pool in Pool}
        self._todo: dict[str, Iterator[Action]] = {name: actions(steps) for name, steps in jobs.items()}

    def run(self) -> Schedule:
        for job in tuple(self._todo):
            self._go_on(job)
        while self._later:
            self._now, _, event = heapq.heappop(self._later)
            event()
        stuck = [pool for pool, state in self._pools.items() if state.holder or state.waiting]
        if stuck:
            raise RuntimeError(
                f"the simulated jobs wait for each other over {stuck}; their order of acquiring is wrong"
            )
        return Schedule(self._now, {pool: state.swaps for pool, state in self._pools.items()})

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self._now + delay_s, next(self._order), event))

    def _go_on(self, job: str) -> None:
        """Carry out the job's actions until one takes time."""
        for action in self._todo[job]:
            match action:
                case Work(busy_s=busy_s):
                    self._after(busy_s, lambda: self._go_on(job))
                    return
                case Acquire(pool):
                    self._pools[pool].waiting.append(job)
                    self._grant_next(pool)
                    return
                case Yield(pool):
                    self._pools[pool].holder = None
                    self._grant_next(pool)

    def _grant_next(self, pool: Pool) -> None:
        state = self._pools[pool]
        if state.holder is not None or not state.waiting:
            return
        job = state.holder = state.waiting.popleft()
        cost_s = 0.0
        if state.resident not in (None, job):
            cost_s += state.swap.save_s
            state.saved.add(str(state.resident))
            state.swaps += 1
        if job in state.saved:
            cost_s += state.swap.restore_s
            state.saved.remove(job)
        state.resident = job
        self._after(cost_s, lambda: self._go_on(job))
