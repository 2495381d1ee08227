"""Fixtures: a node's folders, a kubelet and an API server, all for one test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet

from fake_api_server import FakeApiServer
from gpu_mock_kubernetes.config import NodeFolders, Recipe


@pytest.fixture
def source() -> Path:
    """The folder with the mock, as the image has it."""
    named = os.environ.get("GPU_MOCK_LIB_DIR")
    if not named:
        raise RuntimeError("GPU_MOCK_LIB_DIR is not set: the folder with libcuda.so.1, libnvidia-ml.so.1, gpu-mock")
    return Path(named).absolute()


@pytest.fixture
def folders() -> Iterator[NodeFolders]:
    """A node's folders, as kubelet and manifests make them: on a tmpfs, with paths short enough for sockets."""
    node = Path(tempfile.mkdtemp(prefix="node-", dir="/dev/shm"))
    made = NodeFolders(driver=node / "driver", state=node / "gpus", cdi=node / "cdi", kubelet=node / "kubelet")
    for folder in (made.driver, made.state, made.device_plugins, made.plugins, made.plugin_registry):
        folder.mkdir(parents=True)
    yield made
    shutil.rmtree(node)


@pytest.fixture
def recipe() -> Recipe:
    """Two devices, next to nothing of them filled in advance."""
    return Recipe(gpus="2x8MiB", name="Test GPU", prefault="64KiB")


@pytest.fixture
async def kubelet(folders: NodeFolders) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(folders) as kubelet:
        yield kubelet


@pytest.fixture
async def cluster() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as cluster:
        yield cluster
