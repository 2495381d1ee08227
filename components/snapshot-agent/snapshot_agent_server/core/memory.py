"""What an earlier agent on this node left on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snapshot_agent_server.core.contexts import ProcessRecord
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId
from snapshot_agent_server.core.operations import Operation


@dataclass(frozen=True, slots=True)
class Memory:
    epoch: int = 0
    tokens: Mapping[GroupId, int] = field(default_factory=dict)
    admitted: Mapping[GroupId, JobId | None] = field(default_factory=dict)
    processes: Sequence[tuple[ContextKey, ProcessRecord]] = ()
    operations: Sequence[Operation] = ()
