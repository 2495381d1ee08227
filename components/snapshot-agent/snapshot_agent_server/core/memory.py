"""What an earlier agent on this node left on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snapshot_agent_server.core.contexts import ProcessRecord
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import ContextKey, GroupId
from snapshot_agent_server.core.operations import Operation
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.trees import Tree
from snapshot_agent_server.core.turn import Turn
from snapshot_agent_server.core.workloads import Workload


@dataclass(frozen=True, slots=True)
class Memory:
    epoch: int = 0
    tokens: Mapping[GroupId, int] = field(default_factory=dict)
    turns: Mapping[GroupId, Turn] = field(default_factory=dict)
    processes: Sequence[tuple[ContextKey, ProcessRecord]] = ()
    operations: Sequence[Operation] = ()
    trees: Sequence[tuple[ContextKey, Tree]] = ()
    workloads: Sequence[Workload] = ()
    pods: Sequence[Pod] = ()
    groups: Sequence[GroupClaim] | None = None
    """None: none were ever told."""
