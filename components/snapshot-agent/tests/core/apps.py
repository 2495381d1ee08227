"""Workloads that save themselves, for the core to command: with a true state, and a memory of what they did."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapshot_agent_server.core.ids import CommandId, ConnectionId, ContextKey, OperationId, ProcessId
from snapshot_agent_server.core.modes import Mode
from snapshot_agent_server.core.operations import Kind
from snapshot_agent_server.core.workloads import Command, CommandResult, Offer


@dataclass
class App:
    key: ContextKey
    instance: str
    server: ProcessId | None
    modes: tuple[Mode, ...] = (Mode.OFFLOAD, Mode.DISCARD)
    tags: tuple[str, ...] = ()
    is_on_device: bool = True
    was_accepted: bool = False
    connection: ConnectionId | None = None
    inbox: list[Command] = field(default_factory=list)
    """What has arrived; the first is being carried out."""
    results: list[CommandResult] = field(default_factory=list)
    """What it has said, or would have, were it connected: all of it, the latest last."""
    executed: list[CommandId] = field(default_factory=list)
    moved_for: set[OperationId] = field(default_factory=set)
    """The operations whose commands it has carried out."""
    ended_by_agent: str = ""
    is_deaf: bool = False
    """Its connection is about to break: what is sent now does not arrive."""

    def offer(self, connection: ConnectionId) -> Offer:
        """What it says when it registers. One without an instance knows nothing of results."""
        self.connection = connection
        self.ended_by_agent, self.is_deaf = "", False
        is_own = bool(self.instance)
        return Offer(
            connection=connection,
            instance=self.instance,
            server=self.server,
            modes=self.modes,
            default_mode=self.modes[0],
            tags=self.tags,
            results=tuple(self.results[-2:]) if is_own else (),
            running=self.inbox[0].id if self.inbox and is_own else None,
            is_returning=self.was_accepted and is_own,
            is_saved=is_own and not self.is_on_device,
        )

    def receive(self, command: Command) -> None:
        assert command.id not in self.executed, f"command {command.id} was sent a second time"
        if not self.is_deaf:
            self.inbox.append(command)

    def execute(self, error: str | None = None) -> CommandResult:
        """Carry the first command out, or fail at it, which changes nothing."""
        command = self.inbox.pop(0)
        assert command.id not in self.executed
        self.executed.append(command.id)
        if error is None:
            wanted = command.kind is Kind.RESTORE
            assert self.is_on_device is not wanted, f"told to {command.kind} what is there already"
            self.is_on_device = wanted
            self.moved_for.add(command.operation)
        self.results.append(CommandResult(command.id, error))
        return self.results[-1]
