"""What the core is told: requests of clients, what agents observe and answer, what became of records, the time.

Every event goes to `Orchestrator.handle(event, now)`. Events are facts; those about one node come in the order in which
that node's agent sent them, and none of a stream that was reported as `NodeDisconnected` comes after that report.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.types import (
    NO_TOKEN,
    AcceleratorView,
    AgentErrorKind,
    CallId,
    ContextView,
    EndedLease,
    Epoch,
    EvictAction,
    Fence,
    GroupConfig,
    GroupId,
    GroupRecord,
    JobId,
    NodeId,
    OperationId,
    OperationResult,
    ProcessRef,
    RecordId,
    RequestId,
    SessionId,
    Token,
    WaiterRecord,
)

# ---------------------------------------------------------------- start


@dataclass(frozen=True, slots=True)
class Started:
    """This orchestrator leads from now on, with what the store keeps; the first event, once.

    `epoch` was made durable before. Groups of records that are not configured are kept and not served. `run` is a name
    that no other process that ever led has, for the ids of operations; empty where one store is all there ever was.
    """

    epoch: Epoch
    groups: tuple[GroupConfig, ...] = ()
    records: tuple[GroupRecord, ...] = ()
    ended: tuple[EndedLease, ...] = ()
    waiters: tuple[WaiterRecord, ...] = ()
    run: str = ""


@dataclass(frozen=True, slots=True)
class GroupConfigured:
    """A group appeared, or its configuration changed."""

    config: GroupConfig


@dataclass(frozen=True, slots=True)
class Woken:
    """The time asked for with `WakeAt` has come; waking too early or too often does no harm."""


@dataclass(frozen=True, slots=True)
class Draining:
    """This orchestrator is about to stop: switches under way are finished, new ones are left to the next one."""


# ---------------------------------------------------------------- clients


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequested:
    """A client's Acquire; answered by `ReplyAcquired`, `ReplyQueued` or `Refuse` with the same call."""

    call: CallId
    group: GroupId
    job: JobId
    request: RequestId | None = None
    """None: the client names no attempts; this call is its own."""
    session: SessionId | None = None
    wait_s: float | None = None
    """Answer `ReplyQueued` after this long; None: no bound."""
    priority: int = 0
    expected_hold_s: float = 0.0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """A call ended before its reply was written (cancelled, past its deadline, connection lost).

    For a call already answered by the core: the client never got that reply. A lease that only such calls were
    answered with is undone. Unknown calls are ignored.
    """

    call: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldRequested:
    """A client's Yield; answered by `ReplyYielded` or `Refuse` with the same call."""

    call: CallId
    group: GroupId
    job: JobId
    token: Token = NO_TOKEN
    session: SessionId | None = None
    expected_idle_s: float = 0.0
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRenewed:
    """A message on a Session stream: the first opens or resumes the session, each further one renews it.

    Every one is answered, by `AnswerSession` or by `Refuse` (then the stream is to be ended with that status).
    `stream` is the stream's own id: when a client reconnects, the loss of its older stream means nothing.
    """

    stream: CallId
    session: SessionId
    job: JobId
    ttl_s: float = 0.0
    processes: tuple[ProcessRef, ...] = ()
    claims: tuple[tuple[GroupId, Token], ...] = ()
    """The leases that the client says it holds."""


@dataclass(frozen=True, slots=True)
class SessionStreamLost:
    """A Session stream broke: cancelled, pings unanswered, connection gone."""

    stream: CallId


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A client ended its Session stream by itself: it needs its leases no more."""

    stream: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictRequested:
    """An operator's Evict; answered by `ReplyEvicted` or `Refuse`."""

    call: CallId
    group: GroupId
    action: EvictAction
    job: JobId | None = None
    reason: str = ""
    request: RequestId | None = None
    node: NodeId | None = None


# ---------------------------------------------------------------- agents


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObserved:
    """A node's whole state: the first message of every Watch stream (or the first poll after a silence)."""

    node: NodeId
    incarnation: str = ""
    contexts: tuple[ContextView, ...] = ()
    accelerators: tuple[AcceleratorView, ...] = ()
    fences: tuple[Fence, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    """The infrastructure says that a node is gone for good, with all it had. Told before the groups without it."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeDisconnected:
    """The stream to a node's agent is gone, or it does not answer; tell it at once, the core counts the time."""

    node: NodeId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ContextChanged:
    """An agent's view of one context changed."""

    node: NodeId
    context: ContextView


@dataclass(frozen=True, slots=True)
class ContextGone:
    """An agent no longer knows a context: its processes have ended."""

    node: NodeId
    job: JobId
    group: GroupId


@dataclass(frozen=True, slots=True)
class AcceleratorChanged:
    """An agent's view of one accelerator changed."""

    node: NodeId
    accelerator: AcceleratorView


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """A Snapshot or Restore ended, however it was learned (pushed, polled, asked with `QueryOperation`)."""

    node: NodeId
    operation: OperationId
    result: OperationResult


@dataclass(frozen=True, slots=True)
class OperationPending:
    """Answer to `QueryOperation`: it is still running."""

    node: NodeId
    operation: OperationId


@dataclass(frozen=True, slots=True)
class OperationUnknown:
    """Answer to `QueryOperation`: the agent knows no such operation."""

    node: NodeId
    operation: OperationId


@dataclass(frozen=True, slots=True)
class Locked:
    """All processes of a context are locked: the end of `LockContext`."""

    node: NodeId
    operation: OperationId


@dataclass(frozen=True, slots=True)
class Unlocked:
    """A context is unlocked: the end of `UnlockContext`."""

    node: NodeId
    operation: OperationId


@dataclass(frozen=True, slots=True)
class AgentCallFailed:
    """A call for an agent effect (Snapshot, Restore, Lock, Unlock, Kill) did not succeed."""

    node: NodeId
    operation: OperationId
    kind: AgentErrorKind
    error: str = ""


# ---------------------------------------------------------------- store


@dataclass(frozen=True, slots=True)
class Recorded:
    """A `Record` effect is durable."""

    group: GroupId
    version: RecordId


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """A `Record` effect was certainly not written (disk full, store unreachable before sending)."""

    group: GroupId
    version: RecordId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordUnclear:
    """A `Record` effect was cut off: it may or may not have been written. The core answers with `ReadRecord`."""

    group: GroupId
    version: RecordId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordRead:
    """Answer to `ReadRecord`: what the store holds now; None: it holds none of the group."""

    group: GroupId
    record: GroupRecord | None


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """`ReadRecord` got no answer; the core asks again after a pause."""

    group: GroupId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Together:
    """What happened at once: decisions are taken when all of it is known."""

    events: tuple[Event, ...]


Event = (
    Started
    | GroupConfigured
    | Woken
    | Draining
    | AcquireRequested
    | CallCancelled
    | YieldRequested
    | SessionRenewed
    | SessionStreamLost
    | SessionClosed
    | EvictRequested
    | NodeObserved
    | NodeDeleted
    | NodeDisconnected
    | ContextChanged
    | ContextGone
    | AcceleratorChanged
    | OperationEnded
    | OperationPending
    | OperationUnknown
    | Locked
    | Unlocked
    | AgentCallFailed
    | Recorded
    | RecordFailed
    | RecordUnclear
    | RecordRead
    | ReadFailed
    | Together
)
