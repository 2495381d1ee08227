"""`--agent` flags: what they mean, and that one that contradicts itself is refused with what to write instead."""

import asyncio

import pytest

from orchestrator.infra.interface import AgentSpec, GroupOnNode, Topology
from orchestrator.infra.static import BadAgentFlag, StaticInfra, parse_agents


def test_groups_and_accelerators_are_read_from_the_flag() -> None:
    flags = ["n1=unix:/a.sock,group=trainers:0+GPU-5,group=samplers", "n2=127.0.0.1:90,group=trainers"]
    assert parse_agents(flags) == [
        AgentSpec("n1", "unix:/a.sock", (GroupOnNode("trainers", ("0", "GPU-5")), GroupOnNode("samplers", ()))),
        AgentSpec("n2", "127.0.0.1:90", (GroupOnNode("trainers", ()),)),
    ]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["n1"], "NODE=ADDR is missing"),
        (["=unix:/a,group=g"], "NODE=ADDR is missing"),
        (["n1=,group=g"], "NODE=ADDR is missing"),
        (["n1=unix:/a"], "names no group"),
        (["n1=unix:/a,g"], "'g' is not group=NAME"),
        (["n1=unix:/a,group="], "is not group=NAME"),
        (["n1=unix:/a,group=g:"], "not empty"),
        (["n1=unix:/a,group=g:0++1"], "not empty"),
        (["n1=unix:/a,group=g\n"], "printable"),
        (["n1=unix:/a,group=" + "g" * 254], "253"),
        (["n1=unix:/a,group=g,group=g"], "twice"),
        (["n1=unix:/a,group=g:0,group=h:0"], "accelerator '0' is in groups 'g' and 'h'"),
        (["n1=nowhere,group=g"], "neither unix:PATH nor HOST:PORT"),
        (["n1=host:70000,group=g"], "neither unix:PATH nor HOST:PORT"),
        (["n1=unix:/" + "a" * 100 + ",group=g"], "longer than 99 bytes"),
        (["n1=unix:/a,group=g", "n1=unix:/b,group=h"], "node 'n1' was given before"),
        (["n1=unix:/a,group=g", "n2=unix:/a,group=h"], "address 'unix:/a' was given before"),
    ],
)
def test_a_flag_that_cannot_be_meant_is_refused_in_one_line(flags: list[str], names: str) -> None:
    with pytest.raises(BadAgentFlag) as refused:
        parse_agents(flags)
    assert names in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_the_static_topology_comes_at_once_and_only_once() -> None:
    [spec] = parse_agents(["n1=unix:/a,group=g"])
    topologies = StaticInfra([spec]).topologies()
    assert await anext(topologies) == Topology((spec,))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(topologies)
