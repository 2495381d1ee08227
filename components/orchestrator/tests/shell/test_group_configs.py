"""Configured accelerators: an index becomes an id once the node's agent has told its accelerators."""

from orchestrator.core.types import AcceleratorId, AcceleratorView, GroupConfig, GroupId, NodeId, OnUnsaveable
from orchestrator.group_configs import GroupConfigs
from orchestrator.infra.interface import Topology
from orchestrator.infra.static import parse_agents
from orchestrator.policies import UnsaveablePolicies

N1, N2 = NodeId("n1"), NodeId("n2")
VIEWS = [AcceleratorView(AcceleratorId("GPU-a")), AcceleratorView(AcceleratorId("GPU-b"))]


def config(group: str, nodes: tuple[NodeId, ...], *accelerators: tuple[NodeId, str]) -> GroupConfig:
    return GroupConfig(
        group=GroupId(group), nodes=nodes, accelerators=tuple((n, AcceleratorId(a)) for n, a in accelerators))


def configs(*flags: str) -> GroupConfigs:
    return GroupConfigs(Topology(tuple(parse_agents(flags))))


def test_a_group_spans_the_nodes_that_name_it() -> None:
    made = configs("n1=unix:/1,group=g,group=h:GPU-b", "n2=unix:/2,group=g")
    assert made.all() == (config("g", (N1, N2)), config("h", (N1,), (N1, "GPU-b")))


def test_an_index_becomes_an_id_and_the_change_is_told_once() -> None:
    made = configs("n1=unix:/1,group=g:1+GPU-a,group=h")
    assert made.all()[0] == config("g", (N1,), (N1, "1"), (N1, "GPU-a"))
    resolved = config("g", (N1,), (N1, "GPU-b"), (N1, "GPU-a"))
    assert made.observe(N1, VIEWS) == (resolved,)
    assert made.observe(N1, VIEWS) == ()
    assert made.all()[0] == resolved
    changed = made.with_topology(Topology(tuple(parse_agents(["n1=unix:/1,group=i:0"]))))
    assert changed.all()[0] == config("i", (N1,), (N1, "GPU-a"))


def test_a_group_that_is_not_named_any_more_has_no_node() -> None:
    made = configs("n1=unix:/1,group=g").with_topology(Topology(()))
    assert made.all() == (config("g", ()),)
    assert made.with_topology(Topology(tuple(parse_agents(["n1=unix:/1,group=g"])))).all() == (config("g", (N1,)),)


def test_an_index_that_the_node_does_not_have_stays_visible() -> None:
    made = configs("n1=unix:/1,group=g:7")
    assert made.observe(N1, VIEWS) == ()
    assert made.all() == (config("g", (N1,), (N1, "7")),)


def test_a_node_of_no_group_changes_nothing() -> None:
    assert configs("n1=unix:/1,group=g:0").observe(N2, VIEWS) == ()


def test_each_group_has_its_policy_also_after_a_change() -> None:
    topology = Topology(tuple(parse_agents(["n1=unix:/a,group=g,group=h"])))
    configs = GroupConfigs(topology, UnsaveablePolicies(OnUnsaveable.KILL, (("h", OnUnsaveable.WAIT),)), 1.5)
    for now in (configs, configs.with_topology(topology)):
        policies = [(c.group, c.on_unsaveable, c.kill_grace_s) for c in now.all()]
        assert policies == [("g", OnUnsaveable.KILL, 1.5), ("h", OnUnsaveable.WAIT, 1.5)]
