"""Which devices the node has to offer now: followed by what serves the kubelet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from gpu_mock_kubernetes import mock
from gpu_mock_kubernetes.config import NodeFolders
from gpu_mock_kubernetes.folder_watch import FolderWatch
from gpu_mock_kubernetes.logs import note
from gpu_mock_kubernetes.mock import MockNode

NOTHING = MockNode(devices=(), driver_version="", cuda_version=0)

log = logging.getLogger("gpu_mock_kubernetes.offers")


async def follow(folders: NodeFolders) -> AsyncIterator[MockNode]:
    """Yield what the node has, at once and after each change: NOTHING while there is no driver.

    Raises:
        FolderGone: somebody removed the folder of the devices, which a container of ours has mounted.
        OSError: the folder is not there.
    """
    with FolderWatch(folders.state) as watch:
        known: MockNode | None = None
        while True:
            if (found := await _look(folders)) != known:
                known = found
                note(
                    log, "devices to offer", uuids=[one.uuid for one in found.devices],
                    lost=[one.uuid for one in found.devices if one.is_lost],
                )  # fmt: skip
                yield found
            # The offer comes and goes; the state is touched when health may have changed (gpu-mock inject, reset).
            while not {folders.offer.name, "state", ""} & (await watch.changes()).keys():
                pass


async def wait_until_there(folders: NodeFolders) -> None:
    """Return as soon as the installer has done its work; the folder of the devices must exist."""
    with FolderWatch(folders.state) as watch:
        if not folders.offer.exists():
            note(log, "waits for the driver", state=str(folders.state))
        while not folders.offer.exists():
            await watch.changes()


async def _look(folders: NodeFolders) -> MockNode:
    if not folders.offer.exists():
        return NOTHING
    try:
        return await asyncio.to_thread(mock.look, folders.libraries / "gpu-mock", folders.state)
    except mock.MockError as error:
        note(log, "the mock does not answer", logging.WARNING, error=str(error))
        return NOTHING
