"""The node's slice: what is done so that it is right, and that nothing is done when it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mock_kubernetes.mock import MockDevice, MockNode
from gpu_mock_kubernetes.resource_slice import Action, Create, Delete, Replace, plan, quantity, semantic_version

NAME = "node-1-gpu.nvidia.com"
GIB = 1 << 30


def node(*devices: MockDevice) -> MockNode:
    return MockNode(devices, "580.82.07", 13000)


def device(index: int, uuid: str = "GPU-aaa", is_lost: bool = False) -> MockDevice:
    return MockDevice(index, uuid, "Mock H100", 80 * GIB, is_lost)


def test_the_whole_slice() -> None:
    assert plan("node-1", "uid-1", node(device(0)), []) == [
        Create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {
                    "name": NAME,
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1", "controller": True}
                    ],
                },
                "spec": {
                    "driver": "gpu.nvidia.com",
                    "nodeName": "node-1",
                    "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
                    "devices": [
                        {
                            "name": "gpu-0",
                            "attributes": {
                                "type": {"string": "gpu"},
                                "uuid": {"string": "GPU-aaa"},
                                "productName": {"string": "Mock H100"},
                                "driverVersion": {"version": "580.82.7"},
                                "cudaDriverVersion": {"version": "13.0.0"},
                            },
                            "capacity": {"memory": {"value": "80Gi"}},
                        }
                    ],
                },
            }
        )
    ]


class Server:
    """Slices by name, as an API server has them after some actions."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 1

    def perform(self, action: Action) -> None:
        self.version += 1
        match action:
            case Delete(name):
                del self.slices[name]
            case Create(body):
                assert body["metadata"]["name"] not in self.slices
                self._store(body)
            case Replace(body):
                found = self.slices[body["metadata"]["name"]]
                assert body["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
                assert body["spec"]["pool"]["generation"] > found["spec"]["pool"]["generation"]
                self._store(body)

    def _store(self, body: dict[str, Any]) -> None:
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        body["spec"]["allNodes"] = None  # what servers add
        self.slices[body["metadata"]["name"]] = body


DEVICES = st.lists(
    st.builds(device, st.integers(0, 3), st.sampled_from(["GPU-a", "GPU-b"]), st.booleans()),
    unique_by=lambda one: one.index,
    max_size=4,
)


@given(st.lists(DEVICES, min_size=1, max_size=5))
def test_one_round_makes_it_right_whatever_was_there(history: list[list[MockDevice]]) -> None:
    server = Server()
    for devices in history:
        for action in plan("node-1", "uid-1", node(*devices), list(server.slices.values())):
            server.perform(action)
        assert plan("node-1", "uid-1", node(*devices), list(server.slices.values())) == []
        healthy = [one for one in devices if not one.is_lost]
        offered = [one for body in server.slices.values() for one in body["spec"]["devices"]]
        assert [one["attributes"]["uuid"]["string"] for one in offered] == [one.uuid for one in healthy]


def test_what_another_version_left_under_another_name_goes() -> None:
    [created] = plan("node-1", "uid-1", node(device(0)), [])
    assert isinstance(created, Create)
    old = {**created.body, "metadata": {"name": "node-1-gpu.nvidia.com-x7", "resourceVersion": "7"}}
    assert plan("node-1", "uid-1", node(device(0)), [old]) == [Delete("node-1-gpu.nvidia.com-x7"), created]


@pytest.mark.parametrize(
    ("text", "version"), [("580.82.07", "580.82.7"), ("570.0", "570.0.0"), ("13", "13.0.0"), ("1.2.3.4", "1.2.3")]
)
def test_versions_are_semantic(text: str, version: str) -> None:
    assert semantic_version(text) == version


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(80 * GIB, "80Gi"), (GIB * 3 // 2, "1536Mi"), (4096, "4Ki"), (1024 * GIB, "1Ti"), (GIB + 4096, "1048580Ki")],
)
def test_quantities(size_bytes: int, text: str) -> None:
    assert quantity(size_bytes) == text
