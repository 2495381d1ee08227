"""What the orchestrator pushes about its groups, for as long as anybody listens: its restarts are bridged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from timeslice._channel import open_channel, status_of
from timeslice._core.calls import Status
from timeslice.cli.group_data import group_data
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 2.0
"""Between two attempts to reach an orchestrator that is gone; the pause doubles from the first to this."""
CLOSE_S = 2.0

_FINAL = frozenset({"NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED"})
"""Asking again would get the same answer."""
_FELL_BEHIND = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class Event:
    """Something happened in a group; of kind "state", nothing did: this is how it stands."""

    sequence: int
    at_s: float
    """Seconds since 1970, on the orchestrator's wall clock."""
    kind: str
    group: str
    job: str
    node: str
    duration_ms: int
    detail: str
    status: dict[str, Any] | None
    """As `group_data` makes it; None: an event from the log, which knows only what happened."""


@dataclass(frozen=True)
class Lost:
    """The orchestrator does not answer any more; it is asked again and again."""

    reason: str


@dataclass(frozen=True)
class Back:
    """It answers again; what happened meanwhile follows."""

    after_s: float


@dataclass(frozen=True)
class Refused:
    """It will not tell; the feed is over."""

    text: str


Message = Event | Lost | Back | Refused


class Feed:
    """A thread that follows groups and hands over what it hears."""

    def __init__(
        self, target: str, groups: Iterable[str], after_sequence: int, hear: Callable[[Message], None]
    ) -> None:
        """Follow `groups` (none: all). With `after_sequence`, events after it come first, as far as the log goes."""
        self._groups, self._after, self._hear = tuple(groups), after_sequence, hear
        self._channel = open_channel(target, [])
        self._stub: Any = pb2_grpc.TimeSliceOrchestratorServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeslice watch", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed.set()
        self._channel.close()  # Ends the call that the thread is in.
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        lost_at: float | None = None
        pause_s = FIRST_PAUSE_S
        while not self._closed.is_set():
            has_heard = False
            status = Status("UNAVAILABLE", "the orchestrator ended the stream")
            try:
                for event in self._stub.WatchGroups(
                    pb2.WatchGroupsRequest(group_ids=self._groups, after_sequence=self._after)
                ):
                    if lost_at is not None:
                        self._hear(Back(time.monotonic() - lost_at))
                        lost_at = None
                    has_heard, self._after = True, event.sequence
                    self._hear(_as_event(event))
            except grpc.RpcError as err:
                status = status_of(err)
            except ValueError:  # The channel was closed between two attempts.
                return
            if self._closed.is_set():
                return
            if status.code in _FINAL:
                self._hear(Refused(_refusal(status)))
                return
            if status.code != _FELL_BEHIND and lost_at is None:
                lost_at = time.monotonic()
                self._hear(Lost(status.details or status.code))
            pause_s = FIRST_PAUSE_S if has_heard else min(LAST_PAUSE_S, pause_s * 2)
            self._closed.wait(pause_s)


def _refusal(status: Status) -> str:
    if status.code == "UNIMPLEMENTED":
        return "this orchestrator does not push events (it knows no WatchGroups); use timeslice status"
    return status.details or f"the orchestrator answered {status.code}"


def _as_event(event: pb2.GroupEvent) -> Event:
    return Event(
        sequence=event.sequence,
        at_s=event.time.ToMilliseconds() / 1000,
        kind=event.kind,
        group=event.group.group_id,
        job=event.job_id,
        node=event.node,
        duration_ms=event.duration_ms,
        detail=event.detail,
        status=group_data(event.group) if event.group.HasField("state_timestamp") else None,
    )
