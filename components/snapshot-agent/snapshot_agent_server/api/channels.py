"""WorkloadChannel streams: what is to be written on each, in order, until it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.core.effects import EndChannel
from snapshot_agent_server.core.ids import ConnectionId


@dataclass(slots=True, eq=False)
class Channel:
    id: ConnectionId
    end: EndChannel | None = None
    _commands: deque[pb.AgentCommand] = field(default_factory=deque)
    """One at most, since the core sends the next when the one before was answered."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, command: pb.AgentCommand) -> None:
        self._commands.append(command)
        self._changed.set()

    def finish(self, end: EndChannel) -> None:
        """No further command is delivered, one that waits neither."""
        self.end = end
        self._changed.set()

    async def next(self) -> pb.AgentCommand | EndChannel:
        while self.end is None and not self._commands:
            self._changed.clear()
            await self._changed.wait()
        return self.end or self._commands.popleft()


class Channels:
    """All that are open in this agent process."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._open: dict[ConnectionId, Channel] = {}

    def open(self) -> Channel:
        channel = Channel(ConnectionId(next(self._ids)))
        self._open[channel.id] = channel
        return channel

    def close(self, channel: Channel) -> None:
        self._open.pop(channel.id, None)

    def send(self, connection: ConnectionId, command: pb.AgentCommand) -> None:
        """To one that has ended meanwhile: nothing."""
        if connection in self._open:
            self._open[connection].put(command)

    def finish(self, end: EndChannel) -> None:
        if end.connection in self._open:
            self._open[end.connection].finish(end)
