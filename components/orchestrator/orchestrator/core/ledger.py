"""What must be durable before others hear of it: one group's record, its versions, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.effects import Effect, ReadRecord, Record, StepDown
from orchestrator.core.timers import Timer, Timers
from orchestrator.core.types import EndedLease, GroupId, GroupRecord, RecordId

Continue = Callable[[float], None]

RETRY_FIRST_S = 0.25
RETRY_LAST_S = 5.0


@dataclass(slots=True)
class _Pending:
    version: int
    then: Continue
    failed: Continue | None


class Ledger:
    """Memory decides, and nobody outside is told before the record says the same.

    Changes made while a write is under way go together into the next one. A write that failed is tried again with what
    is true then; one whose fate is unclear is read back first. So memory is never rolled back, and a crash loses only
    what nobody was told.
    """

    def __init__(self, group: GroupId, durable: RecordId, out: list[Effect], timers: Timers) -> None:
        self._group = group
        self._durable = int(durable)
        self._out = out
        self._timers = timers
        self._is_changed = False
        self._in_flight: int | None = None
        self._is_reading = False
        self._retry_at: float | None = None
        self._failures = 0
        self._ended: list[EndedLease] = []
        self._ended_in_flight: list[EndedLease] = []
        self._pending: list[_Pending] = []
        self.failure: str | None = None
        """Why the last write did not succeed; None: it did."""

    @property
    def durable(self) -> RecordId:
        """The newest version that is known to be written."""
        return RecordId(self._durable)

    @property
    def is_clean(self) -> bool:
        """Nothing waits to be written."""
        return not self._is_changed and self._in_flight is None

    def changed(self, *ended: EndedLease) -> None:
        """Say that the record must be written, and which leases ended with this change."""
        self._is_changed = True
        self._ended.extend(ended)

    def after_recorded(self, then: Continue, now: float, failed: Continue | None = None) -> None:
        """Call `then` once all changes up to here are durable, at once if they are.

        `failed` is called instead, once, if a write fails meanwhile; without it the wait simply goes on.
        """
        if self.is_clean:
            then(now)
            return
        if failed is not None and self.failure is not None:
            failed(now)
            return
        needed = self._durable + 1
        if self._is_changed and self._in_flight is not None:
            needed = self._in_flight + 1
        self._pending.append(_Pending(needed, then, failed))

    def flush(self, record: Callable[[RecordId], GroupRecord], now: float) -> None:
        """Send what is changed, unless a write is under way or a pause after a failure is not over."""
        if not self._is_changed or self._in_flight is not None:
            return
        if self._retry_at is not None and now < self._retry_at:
            return
        self._is_changed = False
        self._retry_at = None
        self._in_flight = self._durable + 1
        self._ended_in_flight, self._ended = self._ended, []
        self._out.append(Record(record(RecordId(self._in_flight)), tuple(self._ended_in_flight)))

    def recorded(self, version: RecordId, now: float) -> None:
        """A write succeeded: go on with what waited for it."""
        if version != self._in_flight:
            return
        self._durable = self._in_flight
        self._in_flight = None
        self._is_reading = False
        self._ended_in_flight = []
        self._failures = 0
        self.failure = None
        ready = [pending for pending in self._pending if pending.version <= self._durable]
        self._pending = [pending for pending in self._pending if pending.version > self._durable]
        for pending in ready:
            pending.then(now)

    def record_failed(self, version: RecordId, reason: str, now: float) -> None:
        """A write did not happen: it is tried again after a pause."""
        if version != self._in_flight:
            return
        self._in_flight = None
        self._is_reading = False
        self._is_changed = True
        self._ended = self._ended_in_flight + self._ended
        self._ended_in_flight = []
        self.failure = reason or "the store did not take the record"
        self._retry_at = self._pause(now)
        for pending in self._pending:
            pending.version = self._durable + 1  # what was to come after the failed write goes into the next with it
        told = [pending for pending in self._pending if pending.failed is not None]
        self._pending = [pending for pending in self._pending if pending.failed is None]
        for pending in told:
            assert pending.failed is not None
            pending.failed(now)

    def record_unclear(self, version: RecordId, reason: str) -> None:
        """A write was cut off: ask what the store holds."""
        if version != self._in_flight:
            return
        self.failure = reason or "a write was cut off"
        self._is_reading = True
        self._out.append(ReadRecord(self._group))

    def record_read(self, held: GroupRecord | None, now: float) -> None:
        """The record decides: it is either the version that was sent, or the one before."""
        if not self._is_reading or self._in_flight is None:
            return
        version = int(held.version) if held is not None else 0
        if version == self._in_flight:
            self.recorded(RecordId(version), now)
        elif version < self._in_flight:
            self.record_failed(RecordId(self._in_flight), self.failure or "", now)
        else:
            self._out.append(StepDown(f"group {self._group!r}: the store holds version {version} of its record, which"
                                      f" this orchestrator did not write (it wrote up to {self._in_flight})"))

    def read_failed(self, reason: str, now: float) -> None:
        """The store did not answer: ask again after a pause."""
        if self._is_reading:
            self.failure = reason or self.failure
            self._pause(now)

    def retry(self, now: float) -> None:
        """The pause is over; `flush` does the rest."""
        self._retry_at = None
        if self._is_reading:
            self._out.append(ReadRecord(self._group))

    def _pause(self, now: float) -> float:
        at_s = now + min(RETRY_LAST_S, RETRY_FIRST_S * 2.0**min(self._failures, 10))
        self._failures += 1
        self._timers.set(Timer(self._group, "store"), at_s)
        return at_s
