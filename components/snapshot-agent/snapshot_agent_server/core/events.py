"""What happens to the core. Past tense; calls from outside are events too."""

from __future__ import annotations

from dataclasses import dataclass

from snapshot_agent_server.core.effects import Emptied
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import (
    AcceleratorId,
    ConnectionId,
    ContextKey,
    GroupId,
    JobId,
    OperationId,
    PodUid,
    ProcessId,
)
from snapshot_agent_server.core.modes import Wish
from snapshot_agent_server.core.operations import Kind
from snapshot_agent_server.core.outcomes import DriverState, Outcome, Verb
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.samples import Sample
from snapshot_agent_server.core.trees import Tree
from snapshot_agent_server.core.workloads import CommandResult, Offer


@dataclass(frozen=True, slots=True)
class ObservedProcess:
    """A process that was checked against /proc, and what the driver and NVML say of it."""

    id: ProcessId
    state: DriverState = DriverState.UNKNOWN
    usage: tuple[tuple[AcceleratorId, int], ...] = ()
    pod: PodUid | None = None
    """Where it runs, if that is known."""
    inner_pid: int = 0
    """What it calls itself there; 0: not known."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A workload named its processes, or offered to save itself, or both.

    A second time adds processes; one that is in another context is refused, all or nothing.
    """

    call: int
    key: ContextKey
    processes: tuple[ObservedProcess, ...]
    tree: Tree | None = None
    """The context is this tree, or has it besides others; its root is among `processes`."""
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Requested:
    """A Snapshot, Restore, Lock or Unlock call came in. `group` None: all contexts of the job."""

    call: int
    kind: Kind
    job: JobId
    group: GroupId | None
    operation: OperationId
    token: int = 0
    epoch: int = 0
    timeout_s: float = 0.0
    """0: ours."""
    leave_locked: bool = False
    after: OperationId | None = None
    targets: tuple[ObservedProcess, ...] = ()
    """Processes that the request names; they join the context."""
    wish: Wish | None = None
    then: Requested | None = None
    """Another request that came in the same message, answered by itself."""


@dataclass(frozen=True, slots=True)
class KillRequested:
    """A Kill call came in. `group` None: all contexts of the job."""

    call: int
    job: JobId
    group: GroupId | None
    token: int = 0
    epoch: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """A Watch came in with this leader epoch, above 0."""

    call: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A driver call of an operation came to an end."""

    operation: OperationId
    process: ProcessId
    verb: Verb
    outcome: Outcome
    goes_on: bool = False
    """The next call of `CallDriver.then` is under way."""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class MembersListed:
    """The trees were looked through, and pods. `found`: members that were not known, and processes that the core wanted
    to know more of. A look is older than its news: for the rest it answers only what waited for it since before it
    began."""

    found: tuple[tuple[ContextKey, ObservedProcess], ...] = ()
    operation: OperationId | None = None
    emptied: Emptied | None = None
    in_pods: tuple[tuple[PodUid, ObservedProcess], ...] = ()
    """Processes in pods of jobs that were not known; those that do not use CUDA may be among them."""


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """A workload said what became of a command, on whichever connection."""

    connection: ConnectionId
    result: CommandResult


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """A workload's connection is over. `is_closed`: the workload said so; else it broke, and may come back."""

    connection: ConnectionId
    is_closed: bool


@dataclass(frozen=True, slots=True)
class PodsChanged:
    """The pods of this node, all of them, as the cluster has them now."""

    pods: tuple[Pod, ...]
    """Those that name a job."""
    others: frozenset[PodUid] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupsChanged:
    """What the cluster says of groups on this node, all of it, the oldest group first."""

    claims: tuple[GroupClaim, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    sample: Sample


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that `next_wake` named has come. Harmless at any other time."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The agent shuts down: nothing new starts, what runs is finished or rolled back."""


Event = (
    Registered
    | Requested
    | KillRequested
    | EpochSeen
    | Answered
    | ProcessEnded
    | MembersListed
    | CommandAnswered
    | ChannelEnded
    | PodsChanged
    | GroupsChanged
    | Sampled
    | Woken
    | Closing
)
