"""Groups as the infrastructure states them, made into the core's configuration: an accelerator's index becomes its id.

A flag may say "0" for a node's first accelerator; its id is known when the node's agent has told its accelerators.
"""

from collections import defaultdict
from collections.abc import Sequence

from orchestrator.core.types import (
    AcceleratorId,
    AcceleratorView,
    GroupConfig,
    GroupId,
    NodeId,
)
from orchestrator.infra.interface import GroupPolicy, Topology
from orchestrator.policies import WAIT_EVERYWHERE, UnsaveablePolicies


class GroupConfigs:
    """The configuration of every group of one topology, as far as it is known."""

    def __init__(
        self,
        topology: Topology,
        on_unsaveable: UnsaveablePolicies = WAIT_EVERYWHERE,
        kill_grace_s: float = 30.0,
    ) -> None:
        """`kill_grace_s` is for all groups whose policy is to kill."""
        self._on_unsaveable = on_unsaveable
        self._kill_grace_s = kill_grace_s
        self._policies = {GroupId(policy.group): policy for policy in topology.policies}
        self._named: dict[GroupId, dict[NodeId, tuple[str, ...]]] = defaultdict(dict)
        for agent in topology.agents:
            for group in agent.groups:
                self._named[GroupId(group.group)][NodeId(agent.node)] = group.accelerators
        self._ids: dict[NodeId, tuple[AcceleratorId, ...]] = {}

    def with_topology(self, topology: Topology) -> "GroupConfigs":
        """Another topology, with what the agents have told so far."""
        changed = GroupConfigs(topology, self._on_unsaveable, self._kill_grace_s)
        changed._ids = dict(self._ids)
        for group in self._named:
            changed._named[group]  # one that is not named any more has no node, and grants nothing
        return changed

    def all(self) -> tuple[GroupConfig, ...]:
        """Every group, with what is known now."""
        return tuple(map(self._config, self._named))

    def observe(self, node: NodeId, accelerators: Sequence[AcceleratorView]) -> tuple[GroupConfig, ...]:
        """A node's agent told its accelerators, in order of index; the groups whose configuration that changes."""
        before = {group: self._config(group) for group, nodes in self._named.items() if node in nodes}
        self._ids[node] = tuple(view.accelerator for view in accelerators)
        return tuple(now for group, then in before.items() if (now := self._config(group)) != then)

    def _config(self, group: GroupId) -> GroupConfig:
        nodes = self._named[group]
        stated = self._policies.get(group, GroupPolicy(group))
        return GroupConfig(
            group=group,
            nodes=tuple(nodes),
            on_unsaveable=stated.on_unsaveable or self._on_unsaveable.of(group),
            kill_grace_s=self._kill_grace_s if stated.kill_grace_s is None else stated.kill_grace_s,
            accelerators=tuple(
                (node, self._resolve(node, name)) for node, names in nodes.items() for name in names))

    def _resolve(self, node: NodeId, name: str) -> AcceleratorId:
        """The id that an index stands for; a name that is no index of the node stays as it is, and shows as such."""
        ids = self._ids.get(node, ())
        return ids[int(name)] if name.isdecimal() and int(name) < len(ids) else AcceleratorId(name)
