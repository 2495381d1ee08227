"""TimeSliceGroups: how they are named, where they are, and the objects that we apply. Pure functions of data."""

import hashlib
import re
from collections.abc import Iterable

from orchestrator.core.types import GroupId
from orchestrator.kube.api import Object

API_VERSION = "timeslice.io/v1alpha1"
KIND = "TimeSliceGroup"
COLLECTION = "/apis/timeslice.io/v1alpha1/timeslicegroups"
FIELD_MANAGER = "timeslice-orchestrator"
FINALIZER = "timeslice.io/lease"
"""Holds a group that is deleted for as long as it has a lease or a switch."""
NODE_LABEL = "group.timeslice.io/"
"""group.timeslice.io/ID=true on a Node: it is in group ID."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DERIVED = re.compile(r".*-[0-9a-f]{10}")


def object_name(group: str) -> str:
    """The name of a group's object: its id where that can be a name, else one made from it.

    No two ids have the same name. Names have at most 63 characters.
    """
    if len(group) <= 63 and _NAME.fullmatch(group) and not _DERIVED.fullmatch(group):
        return group
    readable = re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-")[:52].strip("-") or "group"
    return f"{readable}-{hashlib.sha256(group.encode()).hexdigest()[:10]}"


def object_path(group: str) -> str:
    """The URL path of a group's object."""
    return f"{COLLECTION}/{object_name(group)}"


def group_of(group_object: Object) -> GroupId:
    """The id of the group that an object is about."""
    return GroupId(group_object.get("spec", {}).get("group") or group_object["metadata"]["name"])


def manifest(group: str, nodes: Iterable[str] | None = None, *, is_held: bool = True) -> Object:
    """What we state of a group by server-side apply: its nodes (None: nothing about them), and that we hold it."""
    name = object_name(group)
    spec: Object = {} if name == group else {"group": group}
    if nodes is not None:
        spec["nodes"] = [{"name": node} for node in sorted(nodes)]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, **({"finalizers": [FINALIZER]} if is_held else {})},
        "spec": spec,
    }


def is_leaving(group_object: Object) -> bool:
    """Somebody has deleted it, and finalizers hold it."""
    return "deletionTimestamp" in group_object["metadata"]


def is_held(group_object: Object) -> bool:
    """Our finalizer is there."""
    return FINALIZER in group_object["metadata"].get("finalizers", ())


def is_ours_to_release(group_object: Object) -> bool:
    """It is deleted, and only our finalizer holds it back, with no lease and no switch left."""
    status = group_object.get("status", {})
    return (
        is_leaving(group_object)
        and is_held(group_object)
        and "lease" not in status
        and "intent" not in status
    )


def groups_of_node(node_object: Object) -> frozenset[str]:
    """The groups that a Node's labels name."""
    labels = node_object["metadata"].get("labels") or {}
    return frozenset(
        label.removeprefix(NODE_LABEL)
        for label, value in labels.items()
        if label.startswith(NODE_LABEL) and value == "true"
    )
