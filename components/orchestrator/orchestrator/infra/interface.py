"""What an infrastructure tells: which nodes have agents, and which groups they serve."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from orchestrator.core.effects import Publish
from orchestrator.core.types import OnUnsaveable


@dataclass(frozen=True, slots=True)
class GroupOnNode:
    """A group's part on one node."""

    group: str
    accelerators: tuple[str, ...]
    """Ids or indices, as configured; empty: whatever the node's agent says."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """A node, where its agent listens, and its groups."""

    node: str
    address: str
    """Empty: no agent runs there now."""

    groups: tuple[GroupOnNode, ...]


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """What is stated of one group alone; None: as this orchestrator's settings say."""

    group: str
    on_unsaveable: OnUnsaveable | None = None
    kill_grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes that are known now. A later topology replaces it whole."""

    agents: tuple[AgentSpec, ...]

    policies: tuple[GroupPolicy, ...] = ()

    deleted: frozenset[str] = frozenset()
    """Nodes of the topology before this one that are gone for good, with all that was on them. A node that only left
    its groups is not among them."""


class Infra(Protocol):
    """Where nodes and groups come from: flags here, the API server in a cluster."""

    def topologies(self) -> AsyncIterator[Topology]:
        """The present topology at once, then a new one after every change. Ends only with the process."""
        ...

    def tell(self, published: Publish) -> None:
        """Something happened that the owners of jobs may want to know where they look. Never waits."""
        ...
