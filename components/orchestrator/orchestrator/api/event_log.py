"""What happened in the groups, as WatchGroups tells it: a bounded memory of events, and those who follow them."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from orchestrator.api import wire
from orchestrator.api.outbox import Outbox
from orchestrator.core.effects import Publish
from orchestrator.core.types import Epoch, GroupId
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

EPOCH_STEP = 1 << 32
"""Sequences of an orchestrator start at its epoch times this: they rise across restarts too."""


@dataclass(frozen=True, eq=False, slots=True)
class Watcher:
    """One client that follows some groups (None: all)."""

    groups: frozenset[str] | None
    outbox: Outbox[pb.GroupEvent]

    def follows(self, group: str) -> bool:
        return self.groups is None or group in self.groups


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of the log: a message only when somebody wants to read it, which most of the time nobody does."""

    published: Publish
    sequence: int
    wall_s: float

    def message(self) -> pb.GroupEvent:
        return wire.group_event(self.published, self.sequence, self.wall_s)


class EventLog:
    """The last events. An event sent live carries the group's status; one from memory only the group's id."""

    def __init__(
        self, epoch: Epoch, size: int, status: Callable[[GroupId], pb.GroupStatus | None], clock: wire.Clock
    ) -> None:
        self._events: deque[Happened] = deque(maxlen=size)
        self._status = status
        self._clock = clock
        self._watchers: set[Watcher] = set()
        self.last_sequence = epoch * EPOCH_STEP

    def append(self, published: Publish) -> None:
        """Remember an event, and tell it to those who follow its group. The status is computed only for them."""
        self.last_sequence += 1
        event = Happened(published, self.last_sequence, self._clock.wall())
        self._events.append(event)
        followers = [watcher for watcher in self._watchers if watcher.follows(published.group)]
        if followers:
            live = event.message()
            status = self._status(published.group)
            if status is not None:
                live.group.CopyFrom(status)
            for watcher in followers:
                watcher.outbox.put(live)

    def since(self, sequence: int, groups: Collection[str]) -> list[pb.GroupEvent]:
        """What is remembered of these groups (none named: all) after this event."""
        return [
            event.message()
            for event in self._events
            if event.sequence > sequence and (not groups or event.published.group in groups)]

    def follow(self, groups: Collection[str], limit: int) -> Watcher:
        """Everything from now on, until `leave`."""
        watcher = Watcher(frozenset(groups) or None, Outbox(limit))
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
