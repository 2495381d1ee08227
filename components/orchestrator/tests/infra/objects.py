"""Objects as the API server has them, as far as the orchestrator looks."""

from typing import Any

Object = dict[str, Any]


def node(name: str, *groups: str, **labels: str) -> Object:
    named = {f"group.timeslice.io/{group}": "true" for group in groups}
    return {"metadata": {"name": name, "labels": {**named, **labels}, "resourceVersion": "1"}}


def agent(
    node: str, ip: str, *, phase: str = "Running", since: str = "2026-01-01T00:00:00Z", leaves: bool = False
) -> Object:
    metadata = {"name": f"agent-{ip}", "namespace": "timeslice-system", "creationTimestamp": since}
    if leaves:
        metadata["deletionTimestamp"] = since
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase, "podIP": ip}}


def group(
    name: str, *ours: str, others: dict[str, list[str]] | None = None, since: str = "2026-01-01T00:00:00Z",
    held: bool = True, **status: Any,
) -> Object:
    """A TimeSliceGroup with nodes that we stated (`ours`) and nodes with accelerators that somebody else did."""
    nodes: dict[str, Object] = {node: {"name": node} for node in ours}
    for other, accelerators in (others or {}).items():
        nodes.setdefault(other, {"name": other})["accelerators"] = accelerators
    return {
        "metadata": {
            "name": name, "uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": since,
            "finalizers": ["timeslice.io/lease"] if held else [],
            "managedFields": [
                {"manager": "timeslice-orchestrator", "operation": "Apply", "fieldsV1": {
                    "f:spec": {"f:nodes": {f'k:{{"name":"{node}"}}': {".": {}} for node in ours}}}},
                {"manager": "kubectl", "operation": "Update", "fieldsV1": {
                    "f:spec": {"f:nodes": {f'k:{{"name":"{node}"}}': {".": {}} for node in others or ()}}}},
            ],
        },
        "spec": {"nodes": list(nodes.values())},
        "status": status,
    }
