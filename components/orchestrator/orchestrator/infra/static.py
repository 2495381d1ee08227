"""Nodes and groups as the command line states them: `--agent NODE=ADDR,group=G[:ACC+ACC...][,group=...]`."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from orchestrator.addresses import address_problem
from orchestrator.core.effects import Publish
from orchestrator.infra.interface import AgentSpec, GroupOnNode, Topology


class BadAgentFlag(ValueError):
    """An `--agent` flag that cannot be meant as it stands. The text says what to write instead."""

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(
            f"--agent {flag!r}: {problem}; write NODE=ADDR,group=NAME[:ACCELERATOR+ACCELERATOR...][,group=...],"
            " with ADDR unix:PATH or HOST:PORT")
        self.flag = flag


class StaticInfra:
    """What never changes while the process runs: one topology, from flags."""

    def __init__(self, agents: Sequence[AgentSpec]) -> None:
        self._topology = Topology(tuple(agents))

    async def topologies(self) -> AsyncIterator[Topology]:
        """The one topology, then silence."""
        yield self._topology
        await asyncio.Event().wait()

    def tell(self, published: Publish) -> None:
        """Nobody looks anywhere but at the orchestrator itself."""


def parse_agents(flags: Sequence[str]) -> list[AgentSpec]:
    """The agents of all `--agent` flags; BadAgentFlag names the first one that contradicts itself or an earlier one."""
    specs: list[AgentSpec] = []
    for flag in flags:
        spec = parse_agent(flag)
        if any(spec.node == other.node for other in specs):
            raise BadAgentFlag(flag, f"node {spec.node!r} was given before")
        if any(spec.address == other.address for other in specs):
            raise BadAgentFlag(flag, f"address {spec.address!r} was given before")
        specs.append(spec)
    return specs


def parse_agent(flag: str) -> AgentSpec:
    """One `--agent` flag as data."""
    head, *parts = flag.split(",")
    node, separator, address = head.partition("=")
    if not separator or not node or not address:
        raise BadAgentFlag(flag, "NODE=ADDR is missing")
    if not node.isprintable() or len(node) > 253:
        raise BadAgentFlag(flag, "a node's name has 1 to 253 printable characters")
    problem = address_problem(address)
    if problem:
        raise BadAgentFlag(flag, problem)
    groups = [_parse_group(flag, part) for part in parts]
    if not groups:
        raise BadAgentFlag(flag, "it names no group")
    seen: dict[str, str] = {}
    for group in groups:
        if [g.group for g in groups].count(group.group) > 1:
            raise BadAgentFlag(flag, f"group {group.group!r} is named twice")
        for accelerator in group.accelerators:
            if accelerator in seen:
                raise BadAgentFlag(
                    flag, f"accelerator {accelerator!r} is in groups {seen[accelerator]!r} and {group.group!r}")
            seen[accelerator] = group.group
    return AgentSpec(node, address, tuple(groups))


def _parse_group(flag: str, part: str) -> GroupOnNode:
    key, _, value = part.partition("=")
    if key != "group" or not value:
        raise BadAgentFlag(flag, f"{part!r} is not group=NAME")
    name, separator, listed = value.partition(":")
    accelerators = tuple(listed.split("+")) if separator else ()
    if not name or not name.isprintable() or len(name) > 253:
        raise BadAgentFlag(flag, "a group's name has 1 to 253 printable characters")
    if not all(a and a.isprintable() and ":" not in a for a in accelerators):
        raise BadAgentFlag(flag, f"the accelerators of group {name!r} are joined by '+' and not empty")
    return GroupOnNode(name, accelerators)
