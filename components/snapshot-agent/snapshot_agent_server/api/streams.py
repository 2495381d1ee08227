"""Watch streams: everything first, then every change, in order. Too slow a reader is cut off, never waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

MAX_BEHIND = 4096
"""Events that a stream may lag behind: some seconds of a busy node, about 1 MB."""


MAX_TOGETHER = 256
"""Events in one message: far below the 4 MB that gRPC allows by default."""

WAIT_S = 0.005
"""How long an event waits for company that can wait."""


class StreamEnd(StrEnum):
    TOO_SLOW = "too slow"
    OLD_EPOCH = "old epoch"
    CLOSING = "closing"


@dataclass(slots=True, eq=False)
class Stream:
    epoch: int
    limit: int
    takes_together: bool = False
    events: deque[pb.AgentEvent] = field(default_factory=deque)
    end: StreamEnd | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, event: pb.AgentEvent) -> None:
        if self.end is not None:
            return
        if len(self.events) >= self.limit:
            self.finish(StreamEnd.TOO_SLOW)
            return
        self.events.append(event)
        self._changed.set()

    def finish(self, end: StreamEnd) -> None:
        """No further event is delivered, those that wait neither: what comes late is worse than a new start."""
        self.end = end
        self.events.clear()
        self._changed.set()

    async def next(self) -> pb.AgentEvent | StreamEnd:
        """The next message: an event, or all that are there, if the reader takes them together."""
        while not self.events:
            if self.end is not None:
                return self.end
            self._changed.clear()
            await self._changed.wait()
        if not self.takes_together or len(self.events) == 1:
            return self.events.popleft()
        return pb.AgentEvent(together=[self.events.popleft() for _ in range(min(len(self.events), MAX_TOGETHER))])


class Streams:
    """All Watch streams of this agent process, and the numbers of its events."""

    def __init__(self, incarnation: str, limit: int = MAX_BEHIND) -> None:
        self.incarnation = incarnation
        self._limit = limit
        self._sequence = 0
        self._open: set[Stream] = set()
        self._waiting: list[pb.AgentEvent] = []
        self._timer: asyncio.TimerHandle | None = None

    def open(self, epoch: int, whole: pb.StatusResponse, takes_together: bool = False) -> Stream:
        """A stream that begins with `whole`, numbered like the last event that it includes."""
        self._send_waiting()  # they are in `whole` already
        stream = Stream(epoch, self._limit, takes_together)
        stream.put(pb.AgentEvent(sequence=self._sequence, incarnation=self.incarnation, snapshot=whole))
        self._open.add(stream)
        return stream

    def close(self, stream: Stream) -> None:
        self._open.discard(stream)

    def publish(self, event: pb.AgentEvent, *, can_wait: bool = False) -> None:
        """Number an event and put it on every stream; in order, and never waiting itself.

        `can_wait`: whoever it matters to was told in another way. It goes with the next event, or soon.
        """
        self._sequence += 1
        event.sequence = self._sequence
        event.incarnation = self.incarnation
        if can_wait:
            self._waiting.append(event)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(WAIT_S, self._send_waiting)
            return
        self._send_waiting()
        for stream in self._open:
            stream.put(event)

    def _send_waiting(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        waiting, self._waiting = self._waiting, []
        for stream in self._open:
            for event in waiting:
                stream.put(event)

    def end_below(self, epoch: int) -> None:
        """End the streams of deposed leaders. Observers without an epoch stay."""
        for stream in self._open:
            if 0 < stream.epoch < epoch:
                stream.finish(StreamEnd.OLD_EPOCH)

    def end_all(self) -> None:
        self._send_waiting()
        for stream in self._open:
            stream.finish(StreamEnd.CLOSING)
