"""From objects of the API server to nodes, groups and agents' addresses, and back to what we state of groups."""

from objects import agent, group, node
from orchestrator.core.types import GroupId, OnUnsaveable
from orchestrator.group_configs import GroupConfigs
from orchestrator.infra.interface import AgentSpec, GroupOnNode, GroupPolicy, Topology
from orchestrator.infra.membership import agent_addresses, to_apply, topology, without_status
from orchestrator.kube.groups import manifest


def named(*found: dict) -> dict:  # type: ignore[type-arg]
    return {one["metadata"]["name"]: one for one in found}


def test_the_topology_is_what_groups_say_of_nodes_that_exist() -> None:
    assert topology(
        named(node("n1"), node("n2")),
        [group("trainers", "n1", "gone", others={"n1": ["0", "GPU-a"]}), group("samplers", "n1", "n2")],
        [agent("n1", "10.0.0.1")],
    ) == Topology((
        AgentSpec("n1", "10.0.0.1:9001", (GroupOnNode("samplers", ()), GroupOnNode("trainers", ("0", "GPU-a")))),
        AgentSpec("n2", "", (GroupOnNode("samplers", ()),)),
    ))


def test_older_groups_come_first_so_that_the_later_one_is_refused_for_an_overlap() -> None:
    [spec] = topology(
        named(node("n1")),
        [group("a", "n1", since="2026-01-02T00:00:00Z"), group("b", "n1", since="2026-01-01T00:00:00Z")], []).agents
    assert [one.group for one in spec.groups] == ["b", "a"]


def test_a_group_may_have_policies_of_its_own() -> None:
    found = group("trainers", "n1")
    found["spec"] |= {"onUnsaveable": "Kill", "limits": {"killGraceSeconds": 5}}
    made = topology(named(node("n1")), [found, group("samplers", "n1")], [])
    assert made.policies == (GroupPolicy("trainers", OnUnsaveable.KILL, 5.0),)
    configs = {config.group: config for config in GroupConfigs(made).all()}
    assert (configs[GroupId("trainers")].on_unsaveable, configs[GroupId("trainers")].kill_grace_s) == ("kill", 5.0)
    assert configs[GroupId("samplers")].on_unsaveable == "wait"


def test_an_agent_is_reached_where_its_running_pod_is() -> None:
    assert agent_addresses([
        agent("n1", "10.0.0.1", leaves=True), agent("n1", "10.0.0.2"), agent("n2", "fd00::1"),
        agent("n3", "10.0.0.3", phase="Pending"), agent("n4", "10.0.0.4", leaves=True),
    ]) == {"n1": "10.0.0.2:9001", "n2": "[fd00::1]:9001", "n4": "10.0.0.4:9001"}


def test_a_group_is_made_for_each_label() -> None:
    assert to_apply([node("n1", "trainers"), node("n2", "trainers", "Big_One"), node("n3")], {}) == [
        manifest("Big_One", {"n2"}), manifest("trainers", {"n1", "n2"})]


def test_nothing_is_stated_that_stands_already() -> None:
    found = group("trainers", "n1", others={"n1": ["0"], "n9": []})
    assert to_apply([node("n1", "trainers")], named(found)) == []


def test_a_label_that_goes_takes_our_statement_with_it_and_leaves_that_of_others() -> None:
    found = group("trainers", "n1", "n2", others={"n9": []})
    assert to_apply([node("n1", "trainers"), node("n2")], named(found)) == [manifest("trainers", {"n1"})]
    assert to_apply([node("n1"), node("n2")], named(found)) == [manifest("trainers", set())]


def test_a_group_that_somebody_else_made_is_held_too() -> None:
    found = group("mine", others={"n1": []}, held=False)
    assert to_apply([], named(found)) == [manifest("mine", set())]


def test_a_deleted_group_is_let_go_once_it_has_no_lease() -> None:
    found = group("trainers", "n1", lease={"job": "a"})
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert to_apply([node("n1", "trainers")], named(found)) == []
    del found["status"]["lease"]
    [released] = to_apply([node("n1", "trainers")], named(found))
    assert "finalizers" not in released["metadata"]
    assert released["spec"] == {"nodes": [{"name": "n1"}]}  # without what we stated before, no spec would be left
    assert released["metadata"]["resourceVersion"] == "7"


def test_a_group_that_was_made_anew_has_no_status() -> None:
    written = group("trainers", "n1", epoch=1)
    made = group("Big_One", "n1")
    made["spec"]["group"] = "Big_One"
    assert without_status([written, made]) == ["Big_One"]
