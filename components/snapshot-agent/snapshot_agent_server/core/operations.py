"""An operation: processes that are driven to a target state, and back if that fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from snapshot_agent_server.core.ids import ContextKey, GroupId, OperationId, ProcessId
from snapshot_agent_server.core.modes import Backend, Wish
from snapshot_agent_server.core.outcomes import STARTS_FROM, DriverState, Verb
from snapshot_agent_server.core.turn import Turn

GONE = "gone: "
"""How the error of an operation begins whose context went on the way: no fault."""


class Kind(StrEnum):
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    LOCK = "lock"
    UNLOCK = "unlock"

    @property
    def moves_memory(self) -> bool:
        return self in (Kind.SNAPSHOT, Kind.RESTORE)


class Phase(StrEnum):
    WAITING = "waiting"
    FORWARD = "forward"
    ROLLBACK = "rollback"
    ENDED = "ended"


class Status(StrEnum):
    PENDING = "pending"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """How an operation ended. `is_indeterminate`: the driver has not said; a later result replaces this one."""

    status: Status
    device_bytes: int = 0
    elapsed_ms: int = 0
    error: str = ""
    is_rolled_back: bool = False
    is_indeterminate: bool = False
    is_gone: bool = False
    """The processes ended on the way: no fault."""
    discarded: tuple[str, ...] = ()
    """What was dropped instead of being kept, by the workload's names."""
    step_us: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Work:
    """One process of an operation."""

    before: DriverState
    """Where a rollback leads; UNKNOWN until the driver has said it for the first time."""
    in_flight: Verb | None = None
    attempts: int = 0
    """Failures in a row of what changes something."""
    asks: int = 0
    """State queries in a row that said nothing."""
    retry_at: float = 0.0
    abandoned: Verb | None = None
    """A Checkpoint or Restore that did not answer. While the driver shows the state from which it starts, it may be
    under way in the target still: only a call that the driver answers settles that."""

    def is_open(self, state: DriverState) -> bool:
        return self.abandoned is not None and state is STARTS_FROM[self.abandoned]


@dataclass(slots=True)
class Operation:
    id: OperationId
    kind: Kind
    keys: tuple[ContextKey, ...]
    accepted_at: float
    deadline: float
    token: int = 0
    epoch: int = 0
    is_left_locked: bool = False
    after: OperationId | None = None
    wish: Wish | None = None
    backend: Backend = Backend.CUDA
    """Decided when it starts."""
    has_moved: bool = False
    """A context of it is where the operation wanted it, by a command of the operation's own."""
    waiting_since: float = 0.0
    """When this agent process took it up: from then on it waits for `after` to arrive."""
    is_listing: bool = False
    """It would start, but for the members of its contexts' trees, which are being listed."""
    is_listed: bool = False
    """They have just been, and the driver was asked who uses CUDA."""
    listings: int = 0
    """Listings in a row in which the driver did not say of some process to which context it belongs."""
    list_at: float = 0.0
    """Not to be listed again before."""
    call: int | None = None
    """The Lock or Unlock call that waits for it."""
    is_own: bool = False
    """The agent's own doing: nobody outside knows its id, nothing of it is kept."""
    phase: Phase = Phase.WAITING
    work: dict[ProcessId, Work] = field(default_factory=dict)
    step_us: dict[str, int] = field(default_factory=dict)
    device_bytes: int = 0
    error: str = ""
    is_timeout: bool = False
    """The reason to go back was time alone: if the driver says that the target was reached, it was."""
    abandoned_at: float | None = None
    """When a driver call of it, other than a state query, was abandoned for the first time."""
    turns_before: dict[GroupId, Turn] = field(default_factory=dict)
    """Whose turn it was when it started; a rollback restores it."""
    started_at: float | None = None
    ended_at: float | None = None
    result: Result | None = None

    @property
    def is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def is_running(self) -> bool:
        return self.phase in (Phase.FORWARD, Phase.ROLLBACK)

    @property
    def is_public(self) -> bool:
        """Known outside by its id: kept, and reported."""
        return self.kind.moves_memory and not self.is_own

    def goal(self, work: Work, state: DriverState) -> DriverState:
        """Where a process in `state` shall be in this phase. `state` itself: nothing to do."""
        if self.phase is Phase.ROLLBACK:
            return work.before if work.before in RETURNABLE else state
        return self.target(state)

    def target(self, state: DriverState) -> DriverState:
        """Where the operation wants a process that is in `state`."""
        match self.kind:
            case Kind.SNAPSHOT:
                return DriverState.CHECKPOINTED
            case Kind.RESTORE:
                return DriverState.LOCKED if self.is_left_locked else DriverState.RUNNING
            case Kind.LOCK:
                return state if state is DriverState.CHECKPOINTED else DriverState.LOCKED
            case Kind.UNLOCK:
                return state if state is DriverState.CHECKPOINTED else DriverState.RUNNING


RETURNABLE = (DriverState.RUNNING, DriverState.LOCKED, DriverState.CHECKPOINTED)
