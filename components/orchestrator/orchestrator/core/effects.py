"""What the shell must do, in the order in which the core returned it (at least within one group).

Agent effects are independent of each other: the shell starts each at once and does not wait for one before the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.types import (
    CallId,
    EndedLease,
    Epoch,
    GroupId,
    GroupRecord,
    JobId,
    Lease,
    NodeId,
    OperationId,
    Refusal,
    RequestId,
    SessionId,
    Token,
    WaiterRecord,
)

# ---------------------------------------------------------------- time


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Woken` at this time; there is one such time for the whole core, the newest effect replaces the older."""

    at_s: float


# ---------------------------------------------------------------- store


@dataclass(frozen=True, slots=True)
class Record:
    """Write a group's record, and append the leases that ended, in one transaction; answer with `Recorded`,
    `RecordFailed` or `RecordUnclear`. At most one per group is in flight."""

    record: GroupRecord
    ended: tuple[EndedLease, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read what the store holds of a group; answer with `RecordRead` or `ReadFailed`."""

    group: GroupId


@dataclass(frozen=True, slots=True)
class RecordWaiter:
    """Keep a waiter's place; best effort, nobody waits for it."""

    waiter: WaiterRecord


@dataclass(frozen=True, slots=True)
class ForgetWaiter:
    """A waiter left the queue; best effort, nobody waits for it."""

    group: GroupId
    request: RequestId


@dataclass(frozen=True, slots=True)
class ForgetEnded:
    """Outcomes of a group up to this token are no longer needed; best effort."""

    group: GroupId
    up_to: Token


# ---------------------------------------------------------------- clients


@dataclass(frozen=True, slots=True)
class ReplyAcquired:
    """Answer an Acquire with a lease."""

    call: CallId
    lease: Lease
    waited_s: float
    context_restored: bool
    discarded_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyQueued:
    """Answer an Acquire with success=false, queued=true: its wait slice is over, its place is kept."""

    call: CallId


@dataclass(frozen=True, slots=True)
class ReplyYielded:
    """Answer a Yield with success."""

    call: CallId
    pending_waiters: int
    snapshot_deferred: bool


@dataclass(frozen=True, slots=True)
class ReplyEvicted:
    """Answer an Evict with what was done."""

    call: CallId
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """End a call, or a Session stream, with an error."""

    call: CallId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class AnswerSession:
    """Send SessionOpened on a Session stream."""

    stream: CallId
    session: SessionId
    ttl_s: float
    leases: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class NotifyLeaseLost:
    """Send LeaseLost on a Session stream."""

    stream: CallId
    session: SessionId
    lease: Lease
    reason: str
    will_resume: bool = False


@dataclass(frozen=True, slots=True)
class NotifyLeaseShared:
    """Send LeaseShared on a Session stream: another session came to a lease of this one's, or left it."""

    stream: CallId
    session: SessionId
    lease: Lease
    other: str


# ---------------------------------------------------------------- agents


@dataclass(frozen=True, slots=True, kw_only=True)
class LockContext:
    """Stop a context's processes from touching the device; answer with `Locked` or `AgentCallFailed`."""

    node: NodeId
    operation: OperationId
    group: GroupId
    job: JobId
    token: Token
    epoch: Epoch
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockContext:
    """Let a context's processes go on; answer with `Unlocked` or `AgentCallFailed`."""

    node: NodeId
    operation: OperationId
    group: GroupId
    job: JobId
    token: Token
    epoch: Epoch
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSnapshot:
    """Start to save a context (the agent locks it first); its end is `OperationEnded`, or `AgentCallFailed` if it
    did not start. The call itself has a short deadline of the edge's own; `timeout_s` is the operation's."""

    node: NodeId
    operation: OperationId
    group: GroupId
    job: JobId
    token: Token
    epoch: Epoch
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRestore:
    """Start to bring a saved context back; its end is told as a snapshot's is, and before it the context's new state.
    Unless it is to be left locked, its agent unlocks it, but not if it has heard by then that somebody wants otherwise:
    then it ends complete, and shows as locked.

    With `after`: it starts when that operation of the same agent is complete, and fails with it. The shell must not
    send it before that operation's own call.
    """

    node: NodeId
    operation: OperationId
    group: GroupId
    job: JobId
    token: Token
    epoch: Epoch
    timeout_s: float
    after: OperationId | None = None
    leave_locked: bool = True


@dataclass(frozen=True, slots=True)
class QueryOperation:
    """Ask an agent for a Snapshot's or Restore's end; answer with `OperationEnded`, `OperationPending`,
    `OperationUnknown`, or `AgentCallFailed` of the kind UNANSWERED."""

    node: NodeId
    operation: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class KillContext:
    """Kill the processes of a context, to free the device; its success shows as `ContextGone`.

    Nothing else is answered but `AgentCallFailed`, which changes nothing: who must be gone is killed again.
    """

    node: NodeId
    operation: OperationId
    group: GroupId
    job: JobId
    token: Token
    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """A node is gone for good: drop its connection."""

    node: NodeId


# ---------------------------------------------------------------- people


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Something happened in a group, for WatchGroups and the log; `kind` is a past-tense word of the event log."""

    group: GroupId
    kind: str
    job: JobId | None = None
    node: NodeId | None = None
    duration_s: float | None = None
    detail: str = ""
    token: Token | None = None


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another orchestrator leads, or a record is not ours any more: stop, change nothing further."""

    reason: str


Effect = (
    WakeAt
    | Record
    | ReadRecord
    | RecordWaiter
    | ForgetWaiter
    | ForgetEnded
    | ReplyAcquired
    | ReplyQueued
    | ReplyYielded
    | ReplyEvicted
    | Refuse
    | AnswerSession
    | NotifyLeaseLost
    | NotifyLeaseShared
    | LockContext
    | UnlockContext
    | StartSnapshot
    | StartRestore
    | QueryOperation
    | KillContext
    | ForgetNode
    | Publish
    | StepDown
)
