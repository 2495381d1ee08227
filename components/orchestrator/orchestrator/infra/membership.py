"""Which node is in which group, and where its agent is, from objects of the API server. Pure functions."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from orchestrator.core.types import GroupId, OnUnsaveable
from orchestrator.infra.interface import AgentSpec, GroupOnNode, GroupPolicy, Topology
from orchestrator.kube import groups
from orchestrator.kube.api import Object

AGENT_LABEL = "app.kubernetes.io/name=snapshot-agent"
AGENT_PORT = 9001


def topology(nodes: Mapping[str, Object], group_objects: Iterable[Object], agents: Iterable[Object]) -> Topology:
    """All nodes that a group names and that exist; one without a running agent has the address ""."""
    addresses, by_age = agent_addresses(agents), sorted(group_objects, key=_age)
    of_node: dict[str, list[GroupOnNode]] = defaultdict(list)
    for found in by_age:
        for entry in found.get("spec", {}).get("nodes") or ():
            if entry["name"] in nodes:
                of_node[entry["name"]].append(
                    GroupOnNode(groups.group_of(found), tuple(map(str, entry.get("accelerators") or ()))))
    specs = tuple(AgentSpec(node, addresses.get(node, ""), tuple(of_node[node])) for node in sorted(of_node))
    return Topology(specs, tuple(filter(None, map(policy, by_age))))


def policy(group_object: Object) -> GroupPolicy | None:
    """What a group's spec says of how it is served; None: nothing."""
    spec = group_object.get("spec", {})
    on_unsaveable = spec.get("onUnsaveable")
    grace_s = spec.get("limits", {}).get("killGraceSeconds")
    if on_unsaveable is None and grace_s is None:
        return None
    return GroupPolicy(
        groups.group_of(group_object), OnUnsaveable(on_unsaveable.lower()) if on_unsaveable else None,
        None if grace_s is None else float(grace_s))


def agent_addresses(agents: Iterable[Object]) -> dict[str, str]:
    """Where the agent of each node listens. Of two on a node, the one that stays; then the younger one."""
    by_node: dict[str, tuple[tuple[bool, str], str]] = {}
    for pod in agents:
        status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName")
        address = status.get("podIP")
        if not node or not address or status.get("phase") != "Running":
            continue
        rank = ("deletionTimestamp" not in pod["metadata"], pod["metadata"].get("creationTimestamp") or "")
        if node not in by_node or rank > by_node[node][0]:
            host = f"[{address}]" if ":" in address else address
            by_node[node] = (rank, f"{host}:{AGENT_PORT}")
    return {node: address for node, (_, address) in by_node.items()}


def to_apply(nodes: Iterable[Object], group_objects: Mapping[str, Object]) -> list[Object]:
    """What must be stated anew: groups that labels name and that are missing, or whose nodes or finalizer are not as
    the labels say, and groups to let go, that were deleted and have no lease."""
    labelled: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for group in groups.groups_of_node(node):
            labelled[group].add(node["metadata"]["name"])
    wanted = []
    for name, found in group_objects.items():
        group = groups.group_of(found)
        ours = labelled.pop(group, set()) if name == groups.object_name(group) else set()
        if groups.is_ours_to_release(found):
            # With the nodes as they stand: a spec of which we take back all is refused, and the finalizer stays.
            released = groups.manifest(group, stated_nodes(found), is_held=False)
            released["metadata"] |= {
                "resourceVersion": found["metadata"]["resourceVersion"], "uid": found["metadata"]["uid"]}
            wanted.append(released)
        elif not groups.is_leaving(found) and (ours != stated_nodes(found) or not groups.is_held(found)):
            wanted.append(groups.manifest(group, ours))
    return wanted + [groups.manifest(group, labelled[group]) for group in sorted(labelled)]


def without_status(group_objects: Iterable[Object]) -> list[GroupId]:
    """Groups whose objects say nothing of their state: they are new, or were removed by force and made anew."""
    return [groups.group_of(found) for found in group_objects if not found.get("status")]


def stated_nodes(group_object: Object) -> set[str]:
    """The nodes in a group's spec that are there because we said so, by the fields that we manage."""
    found: set[str] = set()
    for entry in group_object["metadata"].get("managedFields") or ():
        if entry.get("manager") == groups.FIELD_MANAGER and entry.get("operation") == "Apply":
            nodes = entry.get("fieldsV1", {}).get("f:spec", {}).get("f:nodes", {})
            found |= {json.loads(key[2:])["name"] for key in nodes if key.startswith("k:")}
    return found


def _age(found: Object) -> tuple[str, str]:
    metadata = found["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["name"])
