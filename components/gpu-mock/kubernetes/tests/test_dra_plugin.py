"""The DRA driver against a kubelet and an API server, both of which may restart, forget and fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from container import Container
from fake_kubelet import FakeKubelet, serving

from fake_api_server import FakeApiServer
from gpu_mock_kubernetes import dra_plugin, installer, mock, publisher
from gpu_mock_kubernetes.api_server import SLICES
from gpu_mock_kubernetes.config import NodeFolders, Recipe
from kubelet_api import dra_pb2, plugin_registration_pb2

NODE = "node-1"
SLICE = "node-1-gpu.nvidia.com"


def driver(
    folders: NodeFolders, cluster: FakeApiServer, on_published: Callable[[], None] = lambda: None
) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    return serving(dra_plugin.serve(folders, cluster.api, NODE, on_published))


@pytest.fixture
def cluster_with_node(cluster: FakeApiServer) -> FakeApiServer:
    cluster.objects[f"/api/v1/nodes/{NODE}"] = {"metadata": {"name": NODE, "uid": "node-uid"}}
    return cluster


def add_claim(cluster: FakeApiServer, name: str, device: str, uid: str) -> dra_pb2.Claim:
    """An allocated claim; returns what the kubelet sends for it."""
    cluster.objects[f"/apis/resource.k8s.io/v1/namespaces/jobs/resourceclaims/{name}"] = {
        "metadata": {"namespace": "jobs", "name": name, "uid": uid},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}]
                }
            }
        },
    }
    return dra_pb2.Claim(namespace="jobs", name=name, uid=uid)


def published(cluster: FakeApiServer) -> list[str]:
    """UUIDs in the node's slice."""
    found: dict[str, Any] = cluster.slices.get(SLICE, {"spec": {"devices": []}})
    return [one["attributes"]["uuid"]["string"] for one in found["spec"]["devices"]]


def uuids(folders: NodeFolders) -> list[str]:
    return [one.uuid for one in mock.look(folders.libraries / "gpu-mock", folders.state).devices]


def registration(folders: NodeFolders) -> Path:
    return folders.plugin_registry / "gpu.nvidia.com-reg.sock"


async def test_the_kubelet_finds_it_and_two_pods_share_a_claim(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet, cluster_with_node: FakeApiServer
) -> None:
    cluster = cluster_with_node
    installer.install(source, recipe, folders)
    claim = add_claim(cluster, "shared", "gpu-1", "claim-uid")
    async with driver(folders, cluster):
        await cluster.until(lambda: published(cluster) == uuids(folders))
        info = await kubelet.find_dra_plugin(registration(folders))
        endpoint = str(folders.plugins / "gpu.nvidia.com" / "dra.sock")
        assert info == plugin_registration_pb2.PluginInfo(
            type="DRAPlugin", name="gpu.nvidia.com", endpoint=endpoint, supported_versions=["v1.DRAPlugin"]
        )
        # As the kubelet does for two pods that start together, and after its own restart once more.
        answers = await asyncio.gather(*(kubelet.prepare(endpoint, claim) for _ in range(3)))
        expected = dra_pb2.NodePrepareResourceResponse(
            devices=[
                dra_pb2.Device(
                    request_names=["gpu"], pool_name=NODE, device_name="gpu-1",
                    cdi_device_ids=[f"nvidia.com/gpu={uuids(folders)[1]}"],
                )
            ]
        )  # fmt: skip
        assert answers == [{"claim-uid": expected}] * 3
        with Container(folders, list(expected.devices[0].cdi_device_ids)) as one:
            with Container(folders, list(expected.devices[0].cdi_device_ids)) as other:
                assert one.uuids == other.uuids == uuids(folders)[1:]
        for _ in range(2):
            assert await kubelet.unprepare(endpoint, claim) == {"claim-uid": ""}
        assert await kubelet.prepare(endpoint, claim) == {"claim-uid": expected}
    assert list(folders.plugin_registry.iterdir()) == []
    assert list((folders.plugins / "gpu.nvidia.com").iterdir()) == []
    assert published(cluster) == uuids(folders), "the slice stays for a successor"


async def test_a_claim_that_cannot_be_prepared_does_not_keep_the_others(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet, cluster_with_node: FakeApiServer
) -> None:
    cluster = cluster_with_node
    installer.install(source, recipe, folders)
    good = add_claim(cluster, "good", "gpu-0", "u1")
    gone = dra_pb2.Claim(namespace="jobs", name="gone", uid="u2")
    wrong = add_claim(cluster, "wrong", "gpu-9", "u3")
    async with driver(folders, cluster):
        await cluster.until(lambda: len(published(cluster)) == 2)
        endpoint = (await kubelet.find_dra_plugin(registration(folders))).endpoint
        answers = await kubelet.prepare(endpoint, gone, good, wrong)
    assert (answers["u1"].error, len(answers["u1"].devices)) == ("", 1)
    assert "404" in answers["u2"].error
    assert "not of this node" in answers["u3"].error


async def test_a_slice_that_the_kubelet_deletes_comes_back(
    source: Path, folders: NodeFolders, recipe: Recipe, cluster_with_node: FakeApiServer
) -> None:
    cluster = cluster_with_node
    installer.install(source, recipe, folders)
    async with driver(folders, cluster):
        for _ in range(3):
            await cluster.until(lambda: len(published(cluster)) == 2 and cluster.requests[-1] == f"WATCH {SLICES}")
            await cluster.forget(SLICE)
        await cluster.until(lambda: len(published(cluster)) == 2)


async def test_the_slice_follows_devices_that_are_lost_made_anew_and_taken_away(
    source: Path, folders: NodeFolders, recipe: Recipe, cluster_with_node: FakeApiServer
) -> None:
    cluster = cluster_with_node
    installer.install(source, recipe, folders)
    program = folders.libraries / "gpu-mock"
    first, second = uuids(folders)
    async with driver(folders, cluster):
        await cluster.until(lambda: published(cluster) == [first, second])
        mock.run(program, folders.state, "inject", "device-lost", "device=0")
        await cluster.until(lambda: published(cluster) == [second])
        mock.run(program, folders.state, "reset")
        await cluster.until(lambda: published(cluster) == [first, second])
        assert cluster.slices[SLICE]["spec"]["pool"]["generation"] == 3
        installer.uninstall(folders, patience_s=0.0)
        await cluster.until(lambda: cluster.slices == {})


async def test_it_says_that_it_is_ready_when_the_slice_is_there(
    source: Path, folders: NodeFolders, recipe: Recipe, cluster_with_node: FakeApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cluster = cluster_with_node
    monkeypatch.setattr(publisher, "RETRY_S", (0.01,))
    seen: list[list[str]] = []
    async with driver(folders, cluster, lambda: seen.append(published(cluster))):
        await cluster.until(lambda: cluster.requests[-1:] == [f"WATCH {SLICES}"])
        assert seen == [], "there is no driver yet"
        cluster.fail = [500, 500]
        await asyncio.to_thread(installer.install, source, recipe, folders)
        await cluster.until(lambda: len(published(cluster)) == 2 and cluster.requests[-1] == f"WATCH {SLICES}")
    assert seen == [uuids(folders)]


@pytest.mark.parametrize("status", [500, 429, 403, 409])
async def test_an_api_server_that_fails_is_asked_again(
    source: Path, folders: NodeFolders, recipe: Recipe, cluster_with_node: FakeApiServer, status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cluster = cluster_with_node
    monkeypatch.setattr(publisher, "RETRY_S", (0.01,))
    installer.install(source, recipe, folders)
    cluster.fail = [status] * 5
    async with driver(folders, cluster):
        await cluster.until(lambda: len(published(cluster)) == 2)


async def test_a_restart_of_the_api_server_in_the_middle_of_a_watch(
    source: Path, folders: NodeFolders, recipe: Recipe, cluster_with_node: FakeApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cluster = cluster_with_node
    monkeypatch.setattr(publisher, "RETRY_S", (0.01,))
    installer.install(source, recipe, folders)
    watches = f"WATCH {SLICES}"
    async with driver(folders, cluster):
        await cluster.until(lambda: watches in cluster.requests)
        seen = cluster.requests.count(watches)
        await cluster.end_watches()
        await cluster.until(lambda: cluster.requests.count(watches) > seen)
        await cluster.forget(SLICE)
        await cluster.until(lambda: len(published(cluster)) == 2)


async def test_what_a_killed_predecessor_left_is_replaced(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet, cluster_with_node: FakeApiServer
) -> None:
    cluster = cluster_with_node
    installer.install(source, recipe, folders)
    registration(folders).write_text("not a socket")
    async with driver(folders, cluster):
        await cluster.until(lambda: len(published(cluster)) == 2)
        assert (await kubelet.find_dra_plugin(registration(folders))).name == "gpu.nvidia.com"


