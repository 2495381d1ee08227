"""What the shell must do.

Records are written in order. Those of one turn are on disk before its calls are answered and before the driver is
called, but for lazy ones: what they say, the driver would say again after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from snapshot_agent_server.core.contexts import ContextView
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import (
    AcceleratorId,
    ConnectionId,
    ContextKey,
    GroupId,
    JobId,
    OperationId,
    ProcessId,
)
from snapshot_agent_server.core.operations import Operation, Result
from snapshot_agent_server.core.outcomes import Verb
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.refusals import Refusal
from snapshot_agent_server.core.samples import AcceleratorView
from snapshot_agent_server.core.trees import Tree
from snapshot_agent_server.core.turn import Turn
from snapshot_agent_server.core.workloads import Command, Workload


class Ahead(IntEnum):
    """Records that a call need not wait for if they come in the same event, and all before them is on disk: it may be
    made while they are being written. See OPERATIONS.md, "On record"."""

    NOTHING = 0
    TURN = 1
    """Whose turn it is."""
    ORDER = 2
    """That, the fence, and the operation. What came of such a call is nobody's to hear, and what follows it, unless it
    may go as far ahead itself, does not begin until all is on disk."""


@dataclass(frozen=True, slots=True)
class CallDriver:
    """Answer with `Answered`, always. To be checked before: that the process is still that one, and is not stopped."""

    operation: OperationId
    process: ProcessId
    verb: Verb
    timeout_s: float
    """From the moment when the driver has the call."""
    lock_timeout_ms: int = 0
    accelerators: tuple[AcceleratorId, ...] = ()
    """Where to look for the memory that a checkpoint frees."""
    need: Mapping[AcceleratorId, int] | None = None
    margin: int | None = 0
    """For a restore: answer NoRoom instead, unless each accelerator shows free >= need + margin. None: by its size."""
    ahead_of: Ahead = Ahead.NOTHING
    then: tuple[CallDriver, ...] = ()
    """To be made behind it, one after the other, without asking: each if the one before is Done, and the process can
    still be asked. Each is answered by itself; `Answered.goes_on` says that the next one is under way."""
    not_after: float | None = None
    """Of a call in a `then`: not to be begun from this moment on (monotonic clock). One that moves memory is given up
    then, too."""


@dataclass(frozen=True, slots=True)
class StopProgram:
    """Begin nothing more of the `then` that the call of this process has, if its next one has not begun yet. The
    answer says which."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Emptied:
    """Nobody is known any more of a context that may have others: whether it is gone, a listing tells."""

    key: ContextKey
    number: int
    """Of the listing. One that was asked for before somebody came, or before another, decides nothing."""
    reason: str = ""
    """Why it is gone if it is; empty: its last process ended."""


@dataclass(frozen=True, slots=True)
class ListMembers:
    """Look all trees through, now; answer with `MembersListed`, always."""

    operation: OperationId | None = None
    emptied: Emptied | None = None
    """What is to be repeated in the answer: who waits for it."""
    ask: tuple[ProcessId, ...] = ()
    """Known processes whose driver state is wanted too."""
    jobs: tuple[JobId, ...] = ()
    """Look through the pods of these too."""


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Write this on the connection; if that has ended meanwhile, nothing: its end is told as always."""

    connection: ConnectionId
    command: Command


class ChannelEnd(StrEnum):
    """Why the agent ends a workload's connection."""

    REPLACED = "replaced"
    """Another workload, or the same on a new connection, has taken its place."""
    GONE = "gone"
    """The context is gone: its processes have ended."""


@dataclass(frozen=True, slots=True)
class EndChannel:
    connection: ConnectionId
    end: ChannelEnd
    key: ContextKey


@dataclass(frozen=True, slots=True)
class RecordFence:
    group: GroupId
    token: int


@dataclass(frozen=True, slots=True)
class RecordEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class RecordTurn:
    group: GroupId
    turn: Turn


@dataclass(frozen=True, slots=True)
class RecordProcess:
    process: ProcessId
    key: ContextKey
    usage: Mapping[AcceleratorId, int]
    saved: Mapping[AcceleratorId, int]
    is_lazy: bool = False


@dataclass(frozen=True, slots=True)
class ForgetProcess:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class RecordTree:
    key: ContextKey
    tree: Tree


@dataclass(frozen=True, slots=True)
class ForgetTrees:
    """All trees of a context."""

    key: ContextKey


@dataclass(frozen=True, slots=True)
class RecordWorkload:
    """As it is now: it is copied when the effect is taken."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class ForgetWorkload:
    key: ContextKey


@dataclass(frozen=True, slots=True)
class RecordOperation:
    operation: Operation
    is_lazy: bool = False


@dataclass(frozen=True, slots=True)
class ForgetOperation:
    operation: OperationId


@dataclass(frozen=True, slots=True)
class RecordPods:
    """All of them, in place of those before."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class RecordGroups:
    """All that are claimed, in place of those before."""

    claims: tuple[GroupClaim, ...]


Record = (
    RecordFence
    | RecordEpoch
    | RecordTurn
    | RecordProcess
    | ForgetProcess
    | RecordTree
    | ForgetTrees
    | RecordWorkload
    | ForgetWorkload
    | RecordOperation
    | ForgetOperation
    | RecordPods
    | RecordGroups
)


@dataclass(frozen=True, slots=True)
class Accept:
    """Answer a call: done, or for Snapshot and Restore, started (or known already)."""

    call: int
    operation: OperationId | None = None
    locked_pids: tuple[int, ...] = ()
    killed_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    call: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class KillProcesses:
    """Send SIGKILL to those that are still the same processes, and answer the call with their pids.

    That they have ended is told as always, by `ProcessEnded`.
    """

    call: int
    keys: tuple[ContextKey, ...]
    processes: tuple[ProcessId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WatchProcess:
    """Report `ProcessEnded` when it ends."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class PublishContext:
    view: ContextView
    before: ContextView | None


@dataclass(frozen=True, slots=True)
class PublishGone:
    key: ContextKey
    reason: str


@dataclass(frozen=True, slots=True)
class PublishOperation:
    operation: OperationId
    keys: tuple[ContextKey, ...]
    kind: str
    result: Result


@dataclass(frozen=True, slots=True)
class PublishAccelerator:
    view: AcceleratorView


@dataclass(frozen=True, slots=True)
class PublishGroups:
    """The node's groups are others than before. `problems`: what claims could not have, for people."""

    groups: Mapping[GroupId, tuple[AcceleratorId, ...]]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndStreamsBelow:
    epoch: int


@dataclass(frozen=True, slots=True)
class TakeSample:
    """Soon, besides the regular ones: memory has moved."""


Effect = (
    CallDriver
    | StopProgram
    | ListMembers
    | SendCommand
    | EndChannel
    | Record
    | Accept
    | Refuse
    | KillProcesses
    | WatchProcess
    | PublishContext
    | PublishGone
    | PublishOperation
    | PublishAccelerator
    | PublishGroups
    | EndStreamsBelow
    | TakeSample
)
