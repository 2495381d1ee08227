"""Keeps the node's ResourceSlice as it should be, whoever deletes or changes it: the kubelet does, at its start."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from gpu_mock_kubernetes.api_server import ApiServer, ApiTrouble
from gpu_mock_kubernetes.claims import DRIVER
from gpu_mock_kubernetes.logs import note
from gpu_mock_kubernetes.mock import MockNode
from gpu_mock_kubernetes.resource_slice import plan

RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""After a failure; from the beginning once something has worked. A watch that ended is no failure."""

CHANGES_IN_A_ROW = 3
"""More of them, with nothing but a look in between, mean that somebody changes what we send."""

log = logging.getLogger("gpu_mock_kubernetes.publisher")


class Publisher:
    """Wants are told by `want`; `run` makes them so, and calls `on_right` when devices are found to be there."""

    def __init__(self, api: ApiServer, node_name: str, on_right: Callable[[], None]) -> None:
        self._api, self._node_name, self._on_right = api, node_name, on_right
        self._wanted: MockNode | None = None
        self._told = asyncio.Event()

    def want(self, mock: MockNode) -> None:
        """From now on the slice shall have these devices."""
        self._wanted = mock
        self._told.set()

    async def run(self) -> None:
        """Work until cancelled: list, set right, watch from there; list again after any event, error or silence."""
        failures = changes = 0
        while True:
            await self._told.wait()
            self._told.clear()
            try:
                version = await self._set_right()
                changes = changes + 1 if version is None else 0
                if changes > CHANGES_IN_A_ROW:
                    raise ApiTrouble("the slice does not stay as it is sent", 0, f"after {changes} changes in a row")
                failures = failures if version is None else 0
                if version is not None:
                    if self._wanted and self._wanted.devices:
                        self._on_right()
                    await self._until_changed(version)
                self._told.set()
            except ApiTrouble as trouble:
                failures += 1
                wait_s = RETRY_S[min(failures, len(RETRY_S)) - 1]
                note(log, "slice is not published", logging.WARNING, error=str(trouble), next_try_s=wait_s)
                self._told.set()
                await asyncio.sleep(wait_s)

    async def _set_right(self) -> str | None:
        """Returns the version that all was right at, None: something was changed, look again."""
        assert self._wanted is not None
        listed = await self._api.list_slices(self._node_name, DRIVER)
        actions = plan(self._node_name, await self._api.node_uid(self._node_name), self._wanted, listed.items)
        for action in actions:
            await self._api.perform(action)
            note(log, "slice changed", action=type(action).__name__.lower(), devices=len(self._wanted.devices))
        return None if actions else listed.version

    async def _until_changed(self, version: str) -> None:
        """Return when the slice may have changed, when the watch has ended, or when something else is wanted."""
        watching = asyncio.create_task(self._api.slices_changed(self._node_name, DRIVER, version), name="slice watch")
        telling = asyncio.create_task(self._told.wait(), name="new wants")
        try:
            await asyncio.wait({watching, telling}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            await _end(watching)
            await _end(telling)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ApiTrouble):
        await task
