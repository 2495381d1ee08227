"""Virtual time over the production core: what the same policy makes of given phases and swaps without any overhead.

`simulate` runs the jobs' programs against `core.Orchestrator` with agents whose snapshots and restores take exactly the
times given and whose every other message takes none.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.effects import (
    Effect,
    LockContext,
    Record,
    Refuse,
    ReplyAcquired,
    ReplyYielded,
    StartRestore,
    StartSnapshot,
    UnlockContext,
    WakeAt,
)
from orchestrator.core.events import (
    AcquireRequested,
    ContextChanged,
    Event,
    Locked,
    NodeObserved,
    OperationEnded,
    Recorded,
    Started,
    Unlocked,
    Woken,
    YieldRequested,
)
from orchestrator.core.orchestrator import Orchestrator
from orchestrator.core.types import (
    AcceleratorId,
    AcceleratorView,
    CallId,
    ContextState,
    ContextView,
    CoreSettings,
    DeviceUsage,
    Epoch,
    GroupConfig,
    GroupId,
    JobId,
    NodeId,
    OperationId,
    OperationResult,
)

NODE = NodeId("simulated")


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
    """How long a group's agent takes to save one job's context, and to bring one back."""

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


class SimulationStuck(Exception):
    """A program waits for ever, or was refused; the text says which and why."""


def simulate(programs: Sequence[Program], swaps: Mapping[str, SwapTimes]) -> Simulation:
    """Run the programs to their ends on the production core; `swaps` has each group's times.

    A job's context comes to be with its first grant of a group, as when a process allocates in its first phase; from
    then on it is saved for every other job and brought back. It takes the whole device, so two never fit at once.

    Raises:
        SimulationStuck: a request was refused, or all jobs that are left wait.
    """
    return _Run(programs, swaps).run()


class _Run:
    """One simulation: the core, one node whose agent takes exactly the times given, and the jobs."""

    def __init__(self, programs: Sequence[Program], swaps: Mapping[str, SwapTimes]) -> None:
        self._programs = {program.job: program for program in programs}
        self._swaps = swaps
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._events: deque[Event] = deque()
        self._positions = dict.fromkeys(self._programs, 0)
        self._calls: dict[CallId, tuple[str, str]] = {}
        self._contexts: dict[tuple[str, str], ContextView] = {}
        self._waiting: dict[OperationId, StartRestore] = {}
        self._complete: set[OperationId] = set()
        self._held_since: dict[tuple[str, str], float] = {}
        self._timeline: list[Segment] = []
        self._finished: dict[str, float] = {}
        self._core = Orchestrator(CoreSettings(restore_margin_bytes=0))

    def run(self) -> Simulation:
        groups = tuple(GroupConfig(group=GroupId(group), nodes=(NODE,)) for group in self._swaps)
        self._events.append(Started(Epoch(1), groups))
        self._events.append(NodeObserved(node=NODE, accelerators=tuple(self._accelerator(g) for g in self._swaps)))
        self._drain()
        for job in self._programs:
            self._go_on(job)
        self._drain()
        while self._due and len(self._finished) < len(self._programs):
            self._now, _, then = heapq.heappop(self._due)
            then()
            self._drain()
        if len(self._finished) < len(self._programs):
            waiting = ", ".join(sorted(self._programs.keys() - self._finished.keys()))
            raise SimulationStuck(f"these jobs wait for ever: {waiting}. Look for a group that is never yielded.")
        handoffs = 0
        for name in self._core.group_ids():
            view = self._core.view(name, self._now)
            handoffs += view.handoffs_total if view is not None else 0
        timeline = sorted(self._timeline, key=lambda segment: (segment.start_s, segment.group, segment.kind))
        return Simulation(max(self._finished.values(), default=0.0), self._finished, tuple(timeline), handoffs)

    # ------------------------------------------------------------ jobs

    def _go_on(self, job: str) -> None:
        """Take a job's next action, and those after it that need no time."""
        actions = self._programs[job].actions
        while self._positions[job] < len(actions):
            action = actions[self._positions[job]]
            self._positions[job] += 1
            match action:
                case Acquire(group):
                    call = self._call(job, group)
                    self._events.append(AcquireRequested(call=call, group=GroupId(group), job=JobId(job)))
                    return
                case Work(duration_s):
                    self._after(duration_s, lambda: self._go_on(job))
                    return
                case Yield(group):
                    call = self._call(job, group)
                    start_s = self._held_since.pop((group, job))
                    self._timeline.append(Segment(group, job, "held", start_s, self._now))
                    self._events.append(YieldRequested(call=call, group=GroupId(group), job=JobId(job)))
        self._finished[job] = self._now

    def _call(self, job: str, group: str) -> CallId:
        call = CallId(len(self._calls) + 1)
        self._calls[call] = (job, group)
        return call

    # ------------------------------------------------------------ the world

    def _drain(self) -> None:
        while self._events:
            for effect in self._core.handle(self._events.popleft(), self._now):
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case WakeAt(at_s):
                self._after(max(0.0, at_s - self._now), lambda: self._events.append(Woken()))
            case Record(record):
                self._events.append(Recorded(record.group, record.version))
            case ReplyAcquired(call):
                job, group = self._calls[call]
                self._held_since[(group, job)] = self._now
                if (group, job) not in self._contexts:
                    self._show(group, job, ContextState.RUNNING, locked=False)
                self._go_on(job)
            case ReplyYielded():
                pass
            case Refuse(call, refusal):
                job, _ = self._calls[call]
                raise SimulationStuck(f"job {job!r} was refused: {refusal.text}")
            case LockContext():
                self._events.append(Locked(NODE, effect.operation))
            case UnlockContext():
                self._show(effect.group, effect.job, ContextState.RUNNING, locked=False)
                self._events.append(Unlocked(NODE, effect.operation))
            case StartSnapshot():
                self._swap(effect, "snapshot", self._swaps[effect.group].snapshot_s)
            case StartRestore(after=after) if after is not None and after not in self._complete:
                self._waiting[after] = effect
            case StartRestore():
                self._swap(effect, "restore", self._swaps[effect.group].restore_s)
            case _:
                pass

    def _swap(self, effect: StartSnapshot | StartRestore, kind: str, duration_s: float) -> None:
        start_s = self._now

        def end() -> None:
            state = ContextState.SAVED if kind == "snapshot" else ContextState.RUNNING
            self._timeline.append(Segment(effect.group, effect.job, kind, start_s, self._now))
            self._show(effect.group, effect.job, state, locked=True)
            self._events.append(OperationEnded(NODE, effect.operation, OperationResult(True, elapsed_s=duration_s)))
            self._complete.add(effect.operation)
            follower = self._waiting.pop(effect.operation, None)
            if follower is not None:
                self._swap(follower, "restore", self._swaps[follower.group].restore_s)

        self._after(duration_s, end)

    def _show(self, group: str, job: str, state: ContextState, *, locked: bool) -> None:
        on_device = 1 if state is ContextState.RUNNING else 0
        usage = DeviceUsage(AcceleratorId(group), on_device, 1 - on_device)
        context = ContextView(JobId(job), GroupId(group), state, locked, frozenset({1}), usage=(usage,))
        self._contexts[(group, job)] = context
        self._events.append(ContextChanged(NODE, context))

    @staticmethod
    def _accelerator(group: str) -> AcceleratorView:
        return AcceleratorView(AcceleratorId(group), total_bytes=1, groups=(GroupId(group),))

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self._now + seconds, self._count, then))
