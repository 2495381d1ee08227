"""Calls that a worker may begin by itself, each behind the one before: from then on they are promised to it.

Until it says how far it came nobody knows whether the next one is under way. So nobody else makes it, and an operation
whose first call it is neither starts nor ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.events import Answered
from snapshot_agent_server.core.ids import OperationId, ProcessId


@dataclass(slots=True)
class Program:
    call: CallDriver
    """Under way, as far as the core was told."""
    then: Sequence[CallDriver]
    """Promised."""
    is_stopped: bool = False

    def is_still(self, then: Sequence[CallDriver]) -> bool:
        """Whether all that is promised would be promised now."""
        promised, wanted = ([(c.operation, c.process, c.verb) for c in calls] for calls in (self.then, then))
        return promised == wanted[: len(promised)]


class Programs:
    """All that are under way, by the process that the first call of each is for."""

    def __init__(self) -> None:
        self._under_way: dict[ProcessId, Program] = {}

    def __iter__(self) -> Iterator[Program]:
        return iter(self._under_way.values())

    def begin(self, call: CallDriver, then: Sequence[CallDriver]) -> CallDriver:
        """The call with what its worker may do behind it."""
        if not then:
            return call
        self._under_way[call.process] = Program(call, then)
        return replace(call, then=tuple(then))

    def answered(self, event: Answered) -> CallDriver | None:
        """The call that its worker has begun by itself; what else it was promised is nobody's again if it has not."""
        program = self._under_way.pop(event.process, None)
        if program is None or not event.goes_on:
            return None
        begun, *later = program.then
        if later:
            self._under_way[begun.process] = Program(begun, later, program.is_stopped)
        return begun

    def promise(self, operation: OperationId) -> bool:
        """Whether a worker may begin a call of this operation."""
        return any(call.operation == operation for program in self for call in program.then)
