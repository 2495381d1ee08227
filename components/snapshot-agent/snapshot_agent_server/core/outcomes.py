"""What the driver can be asked, and what can come of it. Errors are data here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from snapshot_agent_server.core.ids import AcceleratorId


class DriverState(StrEnum):
    """A process as the driver sees it. NONE: it has not initialised CUDA. UNKNOWN: the driver was not asked, or did not
    answer. BUSY: it is being saved or restored (CHECKPOINTING, RESTORING)."""

    NONE = "none"
    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    BUSY = "busy"
    UNKNOWN = "unknown"

    @property
    def is_settled(self) -> bool:
        return self not in (DriverState.BUSY, DriverState.UNKNOWN)


class Verb(StrEnum):
    STATE = "state"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


RESULT_OF = {
    Verb.LOCK: DriverState.LOCKED,
    Verb.CHECKPOINT: DriverState.CHECKPOINTED,
    Verb.RESTORE: DriverState.LOCKED,
    Verb.UNLOCK: DriverState.RUNNING,
}

STARTS_FROM = {
    Verb.LOCK: DriverState.RUNNING,
    Verb.CHECKPOINT: DriverState.LOCKED,
    Verb.RESTORE: DriverState.CHECKPOINTED,
    Verb.UNLOCK: DriverState.LOCKED,
}


class Code(IntEnum):
    """The CUresults that we act upon; any other is taken for a flake. Source: cuda.h, enum cudaError_enum."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    ILLEGAL_STATE = 401
    NOT_READY = 600
    NOT_SUPPORTED = 801


@dataclass(frozen=True, slots=True)
class Done:
    """The driver did it. `usage`: device memory, per accelerator, that a checkpoint moved to the host."""

    state: DriverState
    took_us: int = 0
    usage: Mapping[AcceleratorId, int] | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The driver said no; `code` is the CUresult."""

    code: int
    name: str
    took_us: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """One accelerator's memory, and what is resident on it (None: NVML gives no figure for that process)."""

    accelerator: AcceleratorId
    free: int
    total: int
    needed: int
    """What was to be restored, and the margin."""
    resident: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The restore was not tried: these accelerators have less than it needs."""

    short: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The call did not answer and its worker was killed, or the worker died. It may still take effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The driver was not asked: the process is stopped or frozen, so that the call would hang."""

    how: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The process has ended; what has its pid now, if anything, is a stranger."""


Outcome = Done | Refused | NoRoom | Abandoned | Stopped | Gone
