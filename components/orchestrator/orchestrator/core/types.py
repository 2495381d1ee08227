"""The words of the core: ids, what is observed on nodes, what is recorded in the store, what people are shown.

All times named `*_s` are seconds on the caller's monotonic clock or durations; nothing here knows the wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

GroupId = NewType("GroupId", str)
JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
AcceleratorId = NewType("AcceleratorId", str)
SessionId = NewType("SessionId", str)
RequestId = NewType("RequestId", str)
OperationId = NewType("OperationId", str)
Token = NewType("Token", int)
"""Fencing token of a grant; rises within a group for ever. 0 names none."""
NO_TOKEN = Token(0)
Epoch = NewType("Epoch", int)
"""Number of the leader; rises with every start of an orchestrator."""
CallId = NewType("CallId", int)
"""One RPC in progress, or one Session stream; numbered by the API edge, never used again."""
RecordId = NewType("RecordId", int)
"""One write of one group's record: the record's version."""


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process of a client, as a session names it."""

    node: NodeId
    pid: int
    start_time: int = 0


class ContextState(StrEnum):
    """What a node's agent says of a context; a context that no agent mentions is absent."""

    IDLE = "idle"
    """Its processes are known and none has anything on the device."""
    RUNNING = "running"
    """On the device; locked or not is a second fact."""
    TRANSITIONING = "transitioning"
    """Between two states, or the driver has not said how an operation ended."""
    SAVED = "saved"
    FAULTED = "faulted"


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What one context takes on one accelerator: on the device now, and in its saved copy."""

    accelerator: AcceleratorId
    device_bytes: int = 0
    saved_bytes: int = 0


UNENFORCED = ("app_channel", "app_endpoint")
"""Backends whose contexts are saved and restored by their applications: a Lock of them locks nothing."""


@dataclass(frozen=True, slots=True)
class ContextView:
    """One context as its node's agent sees it."""

    job: JobId
    group: GroupId
    state: ContextState
    locked: bool = False
    pids: frozenset[int] = frozenset()
    in_pods: frozenset[ProcessRef] = frozenset()
    """Those of its processes that run in pods, as they name themselves there; `node` is the pod's host name."""
    device_bytes: int = 0
    host_bytes: int = 0
    usage: tuple[DeviceUsage, ...] = ()
    reason: str = ""
    backend: str = ""
    discarded_tags: tuple[str, ...] = ()
    """What its last snapshot dropped instead of keeping it."""

    @property
    def can_be_locked(self) -> bool:
        """Tell whether anything but its own job keeps it from the device; only a driver can."""
        return self.backend not in UNENFORCED


@dataclass(frozen=True, slots=True)
class AcceleratorView:
    """One accelerator of a node, in the order of the node's agent; `groups` as that agent was told."""

    accelerator: AcceleratorId
    used_bytes: int = 0
    total_bytes: int = 0
    groups: tuple[GroupId, ...] = ()
    unmanaged_pids: tuple[int, ...] = ()
    utilization: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Fence:
    """The highest token and epoch that an agent has seen for a group."""

    group: GroupId
    token: Token
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class OperationResult:
    """How a Snapshot or Restore ended, as its agent reports it."""

    complete: bool
    rolled_back: bool = False
    """The context is as it was before the operation, its lock included."""
    indeterminate: bool = False
    """The driver has not said; the agent reports the context's state when it does."""
    gone: bool = False
    """The context's processes ended meanwhile."""
    error: str = ""
    device_bytes: int = 0
    host_bytes: int = 0
    elapsed_s: float = 0.0


class AgentErrorKind(StrEnum):
    """Why a call to an agent did not do what it was asked to."""

    REFUSED = "refused"
    """The agent said no and changed nothing (no room, wrong state, a lock that timed out, ...)."""
    STALE = "stale"
    """The token or the leader epoch is lower than one that the agent has seen."""
    GONE = "gone"
    """The agent knows no such context."""
    UNANSWERED = "unanswered"
    """No answer in time, or the connection broke: it may or may not have happened."""
    UNSUPPORTED = "unsupported"
    """The agent cannot do this (an older contract)."""


# ---------------------------------------------------------------- configuration


class OnUnsaveable(StrEnum):
    """What happens to a holder that cannot be saved and beside which the next one does not fit."""

    WAIT = "wait"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """A group as it is configured: on which nodes, and its policies.

    Which accelerators it has is learned from the nodes' agents (`AcceleratorView.groups`); `accelerators`, where
    given, is compared with that and a difference shows as a condition.
    """

    group: GroupId
    nodes: tuple[NodeId, ...]
    accelerators: tuple[tuple[NodeId, AcceleratorId], ...] = ()
    on_unsaveable: OnUnsaveable = OnUnsaveable.WAIT
    kill_grace_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Times and limits of the protocol; the shell builds it from its own configuration."""

    session_ttl_s: float = 30.0
    """Silence of stream and agents after which a client's leases end; what a client asks for is cut to this."""
    reconnect_grace_s: float = 5.0
    """How long a client may take to open its stream again when all of its processes that agents know have ended, but
    not all of its processes are known to agents (a controller that only starts workers): longer than a reconnection."""
    start_grace_s: float = 600.0
    """How long a lease without session may stand before any process of its job was seen."""
    reattach_s: float = 2.0
    """How long grants wait, after a restart, for waiters to come back, and for a waiter between two wait slices."""
    claims_wait_s: float = 10.0
    """How long nobody is granted when agents know more than the store, which was lost: holders come back meanwhile and
    say that they are. Longer than a client's attempt to connect."""
    detached_grace_s: float = 10.0
    """How long a waiter without session keeps its place with no call attached."""
    lock_timeout_s: float = 10.0
    operation_timeout_s: float = 120.0
    answer_margin_s: float = 10.0
    """Added to a deadline that the agent keeps by itself, before the agent counts as not answering."""
    unreachable_after_s: float = 10.0
    """Silence of a node after which its groups show UNKNOWN."""
    outcome_kept_s: float = 3600.0
    outcomes_kept_per_group: int = 20_000
    restore_margin_bytes: int | None = None
    """Room that must stay free on each accelerator beside what is restored. None: 512 MiB, but at most a 16th of the
    device, which is the agents' own default."""
    max_tries: int = 3
    """Attempts to save a context before it counts as unsaveable, to restore one before its job is faulted."""
    backoff_s: float = 0.25
    """Pause before the second attempt; doubles with each further one, with jitter of half to one and a half."""
    blocked_retry_s: float = 15.0
    """A Blocked group looks again this often, besides whenever something changes."""
    check_invariants: bool = True
    """Check the cheap invariants after every event, and raise InvariantBroken."""


# ---------------------------------------------------------------- what the store keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One that holds a lease besides its owner: another session of the same job, or clients without session."""

    session: SessionId | None = None
    """None: all clients of the job that have no session, taken together."""
    requests: tuple[RequestId, ...] = ()
    """The request ids that were, or may be, answered with it; only those that clients chose."""
    ttl_s: float = 30.0
    processes: tuple[ProcessRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A lease as it is recorded, and sent to clients."""

    group: GroupId
    job: JobId
    token: Token
    session: SessionId | None = None
    """Its owner: the lease is handed on when this session yields. None: a client without sessions."""
    requests: tuple[RequestId, ...] = ()
    """The owner's request ids that were, or may be, answered with this lease; only those that clients chose."""
    accelerators: tuple[str, ...] = ()
    """"NODE/ACCELERATOR" of each accelerator that it covers."""
    ttl_s: float = 30.0
    processes: tuple[ProcessRef, ...] = ()
    """The session's processes at the time of the grant: agents attest them even before the client is back."""
    shared: tuple[Share, ...] = ()
    """Who holds it besides the owner, the oldest first."""
    returned: tuple[RequestId, ...] = ()
    """The request ids of those who held it and have left; a retry of one must not bring its share back."""

    @property
    def holders(self) -> tuple[SessionId | None, ...]:
        """Return the owner's session, then those that share the lease."""
        return (self.session, *(share.session for share in self.shared))

    def all_requests(self) -> tuple[RequestId, ...]:
        """Return every request id that this lease may have been the answer to."""
        shared = (request for share in self.shared for request in share.requests)
        return (*self.requests, *shared, *self.returned)


Lease = LeaseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentRecord:
    """A switch that was decided: its token is durable before any agent sees it."""

    token: Token
    job: JobId | None
    """Who is to be granted; None when contexts are only taken off the device."""
    outgoing: tuple[JobId, ...] = ()
    """Whose contexts were on the device when it was decided."""
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """All of a group that must survive the orchestrator; small and of constant size."""

    group: GroupId
    version: RecordId
    """Rises by one with every write; a store that holds a higher one has another leader's record."""
    last_token: Token = NO_TOKEN
    """The highest token ever given out; never lower than `lease.token` and `intent.token`."""
    lease: LeaseRecord | None = None
    intent: IntentRecord | None = None
    resident: JobId | None = None
    """The last holder, whose context may be on the device unlocked while nobody else is granted."""
    last_yield: EndedLease | None = None
    """Set while the last lease was given back by its job and nobody was granted since."""
    faulted: tuple[tuple[JobId, str], ...] = ()


class Ending(StrEnum):
    """How a lease ended."""

    YIELDED = "yielded"
    EXPIRED = "expired"
    """Its session, or the processes that stood for it, are gone."""
    EVICTED = "evicted"
    FAULTED = "faulted"
    UNDONE = "undone"
    """Its reply was never written: the client never had it. Its request ids count as never used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLease:
    """What is remembered of a lease that is over, so that late and repeated calls are answered rightly."""

    group: GroupId
    job: JobId
    token: Token
    requests: tuple[RequestId, ...]
    ending: Ending
    reason: str = ""
    pending_waiters: int = 0
    """The answer to its Yield, repeated to a repeated Yield."""
    snapshot_deferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiterRecord:
    """A waiter's place in the queue, so that a restart keeps the old order."""

    group: GroupId
    request: RequestId
    job: JobId
    sequence: int
    """Orders the waiters of a group."""
    session: SessionId | None = None
    ttl_s: float = 30.0
    processes: tuple[ProcessRef, ...] = ()
    priority: int = 0
    expected_hold_s: float = 0.0
    owner: str = ""


# ---------------------------------------------------------------- answers


class RefusalCode(StrEnum):
    """Why a client's request is refused; each is one gRPC status of the same name in capitals."""

    NOT_FOUND = "not_found"
    PERMISSION_DENIED = "permission_denied"
    FAILED_PRECONDITION = "failed_precondition"
    ABORTED = "aborted"
    UNAVAILABLE = "unavailable"
    INVALID_ARGUMENT = "invalid_argument"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What happened, to what, and what to do next."""

    code: RefusalCode
    text: str


class EvictAction(StrEnum):
    """EvictRequest.Action."""

    END_LEASE = "end_lease"
    DROP_WAITER = "drop_waiter"
    CLEAR_FAULT = "clear_fault"
    KILL = "kill"
    FORGET_NODE = "forget_node"


# ---------------------------------------------------------------- what people are shown


class GroupState(StrEnum):
    """GroupStatus.State."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    IDLE_YIELDED = "idle_yielded"
    LOCKED = "locked"
    SWITCHING = "switching"


class ConditionKind(StrEnum):
    """The documented list of Condition.type."""

    BLOCKED = "Blocked"
    """The next waiter cannot be served until somebody acts on the jobs named."""
    INTRUDER = "Intruder"
    """The jobs named have a context on the device without the lease; it is locked."""
    STARVED = "Starved"
    """The holder's client does not renew its session; its processes are alive."""
    FAULTED = "Faulted"
    """The jobs named cannot be served until their fault is cleared or their processes are replaced."""
    UNREACHABLE = "Unreachable"
    """A node's agent does not answer."""
    UNEXPLAINED = "Unexplained"
    """An agent no longer knows a context that was saved, and no process has ended."""
    KILL_FAILED = "KillFailed"
    """The jobs named should have been killed, and could not be."""
    STORE_UNAVAILABLE = "StoreUnavailable"
    """A record could not be written: no new grants until it can."""
    OVERLAP = "Overlap"
    """An accelerator belongs to two groups."""
    MISCONFIGURED = "Misconfigured"
    """What the agent says of the group's accelerators differs from the configuration."""
    INDETERMINATE = "Indeterminate"
    """The driver has not said how an operation ended; the accelerators are closed to others until it does."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that an operator or a user should know about a group."""

    kind: ConditionKind
    reason: str
    since_s: float
    jobs: tuple[JobId, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class WaiterView:
    """A waiter as status shows it."""

    job: JobId
    request: RequestId
    waited_s: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class NodeContextView:
    """A context and the node that it is on, for SnapshotAgentJobState."""

    node: NodeId
    context: ContextView


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as GetGroupStatus and WatchGroups show it; computed on demand."""

    group: GroupId
    state: GroupState
    state_since_s: float
    lease: Lease | None = None
    granted_at_s: float | None = None
    next_job: JobId | None = None
    """Who is being switched in."""
    loaded_job: JobId | None = None
    """The job whose context is on the device and not locked, or being brought there."""
    waiters: tuple[WaiterView, ...] = ()
    resident_jobs: tuple[JobId, ...] = ()
    held_share: float = 0.0
    handoffs_total: int = 0
    conditions: tuple[Condition, ...] = ()
    accelerators: tuple[str, ...] = ()
    contexts: tuple[NodeContextView, ...] = field(default=())
