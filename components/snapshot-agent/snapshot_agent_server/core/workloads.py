"""Workloads that save themselves: who they are, what they were told to do, and what they said of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from snapshot_agent_server.core.ids import CommandId, ConnectionId, ContextKey, OperationId, ProcessId
from snapshot_agent_server.core.modes import Mode
from snapshot_agent_server.core.operations import Kind

EVERYTHING = "*"
"""Stands for what was dropped, where the workload names no parts."""


class WorkloadState(StrEnum):
    RUNNING = "running"
    """On the device, as far as the workload has said: it is so from its registration on."""
    SAVED = "saved"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a workload said of a command. `error` None: it was carried out."""

    command: CommandId
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What a workload says of itself when it registers, anew with each connection."""

    connection: ConnectionId
    instance: str = ""
    """Chosen by the workload, the same whenever it comes back. Empty: it does not say, and is taken for the same."""
    server: ProcessId | None = None
    """The process that serves the commands, if the agent sees it: its life is the workload's."""
    modes: tuple[Mode, ...] = (Mode.OFFLOAD,)
    default_mode: Mode = Mode.OFFLOAD
    tags: tuple[str, ...] = ()
    results: tuple[CommandResult, ...] = ()
    running: CommandId | None = None
    is_returning: bool = False
    """It was accepted before, and replaces nobody who came since."""
    is_saved: bool = False
    """It is off the device, as far as it knows."""


@dataclass(frozen=True, slots=True)
class Command:
    """Sent once. While there is one, nobody knows where the context is."""

    id: CommandId
    operation: OperationId
    kind: Kind
    """SNAPSHOT or RESTORE."""
    mode: Mode
    tags: tuple[str, ...]
    sent_at: float


@dataclass(slots=True)
class Workload:
    key: ContextKey
    instance: str
    server: ProcessId | None
    modes: tuple[Mode, ...]
    default_mode: Mode
    tags: tuple[str, ...]
    connection: ConnectionId | None = None
    """None: it is not connected now."""
    lost_at: float = 0.0
    """When it was connected last."""
    state: WorkloadState = WorkloadState.RUNNING
    discarded: tuple[str, ...] = ()
    """What the last snapshot dropped."""
    command: Command | None = None
    """Under way, or lost on the way: a result, the workload's own word when it comes back, or its end settles it."""

    @classmethod
    def of(cls, key: ContextKey, offer: Offer) -> Workload:
        workload = cls(key, offer.instance, offer.server, offer.modes, offer.default_mode, offer.tags)
        workload.connection = offer.connection
        workload.state = WorkloadState.SAVED if offer.is_saved else WorkloadState.RUNNING
        return workload

    def comes_back_as(self, offer: Offer) -> bool:
        """Whether this is the same workload on a new connection, and not another one in its place."""
        return self.instance == offer.instance

    def update(self, offer: Offer) -> None:
        self.server, self.connection = offer.server, offer.connection
        self.modes, self.default_mode, self.tags = offer.modes, offer.default_mode, offer.tags

    def settle(self, command: Command, result: CommandResult) -> None:
        """Take the workload's word for a command. One that failed has changed nothing."""
        self.command = None
        if result.error is not None:
            return
        if command.kind is Kind.RESTORE:
            self.state = WorkloadState.RUNNING
            return
        self.state = WorkloadState.SAVED
        self.discarded = (command.tags or (EVERYTHING,)) if command.mode is Mode.DISCARD else ()
