"""Whether the end of a pod is the end of the driver."""

from __future__ import annotations

from typing import Any

import pytest

from fake_api_server import FakeApiServer
from gpu_mock_kubernetes.lifetime import is_deleted

PATH = "/apis/apps/v1/namespaces/timeslice-system/daemonsets/timeslice-gpu-mock"


async def asked(cluster: FakeApiServer) -> bool:
    return await is_deleted(cluster.api, "timeslice-system", "timeslice-gpu-mock")


@pytest.mark.parametrize(
    ("metadata", "answer"),
    [({"name": "timeslice-gpu-mock"}, False), ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, True), (None, True)],
)
async def test_a_daemon_set_that_is_there_keeps_the_driver(
    cluster: FakeApiServer, metadata: dict[str, Any] | None, answer: bool
) -> None:
    if metadata is not None:
        cluster.objects[PATH] = {"metadata": metadata}
    assert await asked(cluster) == answer


@pytest.mark.parametrize(("status", "answer"), [(401, True), (403, True), (500, False), (503, False), (429, False)])
async def test_permissions_that_are_gone_mean_deletion_and_trouble_does_not(
    cluster: FakeApiServer, status: int, answer: bool
) -> None:
    cluster.objects[PATH] = {"metadata": {}}
    cluster.fail = [status] * 10
    assert await asked(cluster) == answer
