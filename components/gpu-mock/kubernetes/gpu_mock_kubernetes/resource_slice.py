"""The node's ResourceSlice, which the scheduler chooses devices from: pure functions; publisher.py sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_mock_kubernetes.claims import DRIVER, slice_name
from gpu_mock_kubernetes.mock import MockDevice, MockNode

API_VERSION = "resource.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Create:
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replace:
    """A whole object with the resourceVersion that it was decided from."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    name: str


Action = Create | Replace | Delete


def plan(node_name: str, node_uid: str, mock: MockNode, existing: Sequence[Mapping[str, Any]]) -> list[Action]:
    """What to do so that the node has one slice of ours, with its devices; nothing, if that is so.

    A change of devices raises the pool's generation, so that nobody mixes old and new. No devices, no slice.
    """
    wanted = _slice(node_name, node_uid, mock)
    name = wanted["metadata"]["name"]
    actions: list[Action] = [Delete(one["metadata"]["name"]) for one in existing if one["metadata"]["name"] != name]
    found = next((one for one in existing if one["metadata"]["name"] == name), None)
    if not wanted["spec"]["devices"]:
        return [*actions, Delete(name)] if found else actions
    if found is None:
        return [*actions, Create(wanted)]
    generation = found["spec"]["pool"]["generation"]
    if _covers(found["spec"], _with_generation(wanted, generation)["spec"]):
        return actions
    body = _with_generation(wanted, generation + 1)
    body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
    return [*actions, Replace(body)]


def _covers(found: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; the API server may have added defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, Mapping) and all(_covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(found, Sequence) and len(found) == len(wanted) and all(map(_covers, found, wanted))
        )  # fmt: skip
    return bool(found == wanted)


def _with_generation(body: dict[str, Any], generation: int) -> dict[str, Any]:
    pool = {**body["spec"]["pool"], "generation": generation}
    return {**body, "metadata": dict(body["metadata"]), "spec": {**body["spec"], "pool": pool}}


def _slice(node_name: str, node_uid: str, mock: MockNode) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node_name}-{DRIVER}",
            # Goes with the node.
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(one, mock) for one in mock.devices if not one.is_lost],
        },
    }


def _device(device: MockDevice, mock: MockNode) -> dict[str, Any]:
    """Attributes as NVIDIA's driver names them, those that the mock knows."""
    major, minor = mock.cuda_version // 1000, mock.cuda_version % 1000 // 10
    return {
        "name": slice_name(device.index),
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": device.uuid},
            "productName": {"string": device.name},
            "driverVersion": {"version": semantic_version(mock.driver_version)},
            "cudaDriverVersion": {"version": f"{major}.{minor}.0"},
        },
        "capacity": {"memory": {"value": quantity(device.memory_bytes)}},
    }


def semantic_version(text: str) -> str:
    """580.82.07 as 580.82.7: an attribute of type version takes no leading zeros, and three numbers."""
    numbers = [str(int(part)) for part in text.split(".")]
    return ".".join([*numbers, "0", "0"][:3])


def quantity(size_bytes: int) -> str:
    """Whole KiB (devices are whole pages) as the API server writes them, so that what it says compares equal."""
    for unit, shift in (("Ti", 40), ("Gi", 30), ("Mi", 20)):
        if size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return f"{size_bytes >> 10}Ki"
