"""A context: a job's processes for one group on this node, and what state they are in together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from snapshot_agent_server.core.ids import AcceleratorId, ContextKey, GroupId, PodUid, ProcessId
from snapshot_agent_server.core.modes import Backend
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.workloads import Workload, WorkloadState


class ContextState(StrEnum):
    IDLE = "idle"
    """Processes are known, none of them uses CUDA: nothing is on the device, nothing to save."""
    RUNNING = "running"
    TRANSITIONING = "transitioning"
    SAVED = "saved"
    FAULTED = "faulted"


@dataclass(slots=True)
class ProcessRecord:
    """One process of a context, as last heard."""

    id: ProcessId
    state: DriverState = DriverState.UNKNOWN
    usage: dict[AcceleratorId, int] = field(default_factory=dict)
    """Device memory, by NVML's or our own last figure. Stays as it is while NVML reports none ("N/A")."""
    saved: dict[AcceleratorId, int] = field(default_factory=dict)
    """Device memory that stands in host memory now."""
    seen_on: frozenset[AcceleratorId] = frozenset()
    changed_at: float = 0.0
    """Samples taken before this moment say nothing about the process."""
    suspect_until: float = 0.0
    """A call to it was abandoned and may still take effect: its state is asked with every sample until then."""

    is_found: bool = False
    """A member of a tree, or in a pod, that the agent found by itself: nobody named it."""
    pod: PodUid | None = None
    """Where it was found. Not on record: a restarted agent looks again."""
    inner_pid: int = 0
    """What it calls itself there; 0: not known. Not on record either."""
    left_as: DriverState = DriverState.UNKNOWN
    """Where the last operation on it left it."""

    def is_locked_late(self, now: float) -> bool:
        """A lock that was abandoned and rolled back has taken effect after all."""
        is_suspect = self.suspect_until > now
        return is_suspect and self.left_as is DriverState.RUNNING and self.state is DriverState.LOCKED

    def settle(self, state: DriverState, now: float, measured: Mapping[AcceleratorId, int] | None = None) -> None:
        """The driver said where the process is; its memory counts on the device or on the host accordingly.

        `measured`: what a checkpoint moved. Without it, what was last known.
        """
        if state is DriverState.CHECKPOINTED:
            self.saved = dict(measured) if measured is not None else (self.saved or self.usage)
            self.usage = {}
        elif state.is_settled and self.saved:
            self.usage = self.usage or self.saved
            self.saved = {}
        self.state = state
        self.changed_at = now


@dataclass(frozen=True, slots=True)
class UsageView:
    accelerator: AcceleratorId
    device_bytes: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class PodProcess:
    """A process as it names itself in its pod."""

    pod: str
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class ContextView:
    """What the outside is told of a context."""

    key: ContextKey
    state: ContextState
    locked: bool = False
    reason: str = ""
    pids: tuple[int, ...] = ()
    usage: tuple[UsageView, ...] = ()
    backend: Backend = Backend.CUDA
    discarded: tuple[str, ...] = ()
    """What its last snapshot dropped."""
    in_pods: tuple[PodProcess, ...] = ()

    @property
    def device_bytes(self) -> int:
        return sum(usage.device_bytes for usage in self.usage)

    @property
    def host_bytes(self) -> int:
        return sum(usage.saved_bytes for usage in self.usage)


@dataclass(slots=True)
class Context:
    key: ContextKey
    processes: dict[int, ProcessRecord] = field(default_factory=dict)
    workload: Workload | None = None
    """Who saves and restores the context, if it is not the driver."""
    note: str = ""
    """Why the agent did something on its own, for people."""
    last_ended: ProcessRecord | None = None
    """The process that ended last, while it is not clear whether the context's trees have others."""
    emptied: int = 0
    """The number of the listing that tells. 0: none is wanted."""

    def pids(self) -> set[int]:
        """Its processes, and who serves its callbacks."""
        server = self.workload.server if self.workload is not None else None
        return {*self.processes, server.pid} if server is not None else set(self.processes)

    def states(self) -> set[DriverState]:
        """The different states of the processes that use CUDA."""
        return {process.state for process in self.processes.values()} - {DriverState.NONE}

    @property
    def is_present(self) -> bool:
        """There is something to be saved, or somebody to be told to: else the context is gone."""
        return bool(self.processes) or self.workload is not None

    def state(self) -> ContextState:
        states = self.states()
        workload = self.workload
        if workload is not None and not states & {DriverState.CHECKPOINTED, DriverState.FAILED}:
            if workload.command is not None:
                return ContextState.TRANSITIONING
            return ContextState.SAVED if workload.state is WorkloadState.SAVED else ContextState.RUNNING
        if not states:
            return ContextState.IDLE
        if DriverState.FAILED in states:
            return ContextState.FAULTED
        if not all(state.is_settled for state in states):
            return ContextState.TRANSITIONING
        return ContextState.SAVED if states == {DriverState.CHECKPOINTED} else ContextState.RUNNING

    def is_locked(self) -> bool:
        """No process can touch the device, and some are on it."""
        states = self.states()
        return DriverState.LOCKED in states and states <= {DriverState.LOCKED, DriverState.CHECKPOINTED}

    def usage(self) -> tuple[UsageView, ...]:
        device: dict[AcceleratorId, int] = {}
        saved: dict[AcceleratorId, int] = {}
        for process in self.processes.values():
            for totals, sizes in ((device, process.usage), (saved, process.saved)):
                for accelerator, size in sizes.items():
                    totals[accelerator] = totals.get(accelerator, 0) + size
        return tuple(UsageView(a, device.get(a, 0), saved.get(a, 0)) for a in sorted({*device, *saved}))


def failed_text(key: ContextKey, pids: list[int]) -> str:
    """Advice for processes in the driver's FAILED state, which nothing leads out of."""
    named = ", ".join(map(str, sorted(pids)))
    return (
        f"job {key.job!r} in group {key.group!r}: the driver reports state FAILED for process {named};"
        " its device memory is lost. End the job's processes and start it again from its last checkpoint."
    )


def foreign_text(pid: int, key: ContextKey, groups: list[GroupId], accelerators: list[AcceleratorId]) -> str:
    """Advice for a process on accelerators outside its context's group."""
    where = f"of group {', '.join(map(repr, groups))}" if groups else "of no group"
    return (
        f"process {pid} of job {key.job!r} is registered for group {key.group!r} and uses"
        f" {', '.join(accelerators)} {where};"
        " a process is saved whole, on all its GPUs. Make them one group, use one process per group,"
        " or set CUDA_VISIBLE_DEVICES."
    )
