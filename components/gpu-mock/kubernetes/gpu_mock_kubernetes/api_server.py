"""The API server, by the official client: the few calls that the DRA driver and the installer make."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from gpu_mock_kubernetes.resource_slice import Action, Create, Delete, Replace

CALL_TIMEOUT_S = 15.0
WATCH_S = 240
"""The server ends a watch after this time, and we list again."""
WATCH_TIMEOUT_S = WATCH_S + 30.0
"""A connection that has died silently is given up after this time."""
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class ApiTrouble(Exception):
    """The API server did not do what was asked. `status` is HTTP's, 0: there was no answer."""

    def __init__(self, what: str, status: int, detail: str) -> None:
        super().__init__(f"{what}: {f'{status} ' if status else ''}{detail[:256]}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects as JSON, and the version of the list, from which a watch can go on."""

    items: list[dict[str, Any]]
    version: str


@asynccontextmanager
async def in_cluster() -> AsyncIterator[ApiServer]:
    """The API server of the cluster that this pod runs in; its token is read again before it expires."""
    settings = client.Configuration()
    config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    async with client.ApiClient(settings) as api:
        yield ApiServer(api)


class ApiServer:
    """Objects are plain JSON here, not the client's models: what the server says is compared and sent whole."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._node_uids: dict[str, str] = {}

    async def node_uid(self, node: str) -> str:
        """The node's uid, asked for once."""
        if node not in self._node_uids:
            self._node_uids[node] = str((await self._json("GET", f"/api/v1/nodes/{node}"))["metadata"]["uid"])
        return self._node_uids[node]

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A ResourceClaim as it is now."""
        return await self._json("GET", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")

    async def daemon_set(self, namespace: str, name: str) -> dict[str, Any]:
        """A DaemonSet as it is now."""
        return await self._json("GET", f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")

    async def list_slices(self, node: str, driver: str) -> Listed:
        """The driver's ResourceSlices of one node."""
        found = await self._json("GET", SLICES, query={"fieldSelector": _slices_of(node, driver)})
        return Listed(found.get("items") or [], found["metadata"]["resourceVersion"])

    async def slices_changed(self, node: str, driver: str, version: str) -> None:
        """Return when one of them has changed since `version`, or after some minutes without a change."""
        query = {
            "fieldSelector": _slices_of(node, driver),
            "resourceVersion": version,
            "watch": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        line = await self._ask("GET", SLICES, query=query, timeout_s=WATCH_TIMEOUT_S, first_line=True)
        event = json.loads(line) if line else {}
        if event.get("type") == "ERROR" and event["object"].get("code") != 410:  # too old: the next list has an answer
            raise ApiTrouble(
                f"watch of {SLICES}", int(event["object"].get("code", 0)), event["object"].get("message", "")
            )

    async def perform(self, action: Action) -> None:
        """Do it. What is there already, or gone already, is done; a conflict is trouble: list again and decide anew."""
        match action:
            case Create(body):
                await self._ask("POST", SLICES, body=body, fine=(409,))
            case Replace(body):
                await self._ask("PUT", f"{SLICES}/{body['metadata']['name']}", body=body)
            case Delete(name):
                await self._ask("DELETE", f"{SLICES}/{name}", fine=(404,))

    async def _json(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._ask(method, path, query=query))
        return found

    async def _ask(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None,
        timeout_s: float = CALL_TIMEOUT_S, fine: tuple[int, ...] = (), first_line: bool = False,
    ) -> bytes:  # fmt: skip
        """What the server answers, or the first line of it.

        Raises:
            ApiTrouble: an error status that is not among the `fine` ones, or no answer in time.
        """
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(timeout_s):
                request = await self._api.param_serialize(
                    method, path, query_params=list((query or {}).items()), body=body,
                    header_params={"Accept": "application/json"}, auth_settings=["BearerToken"],
                )  # fmt: skip
                answer = await self._api.call_api(
                    *request, _request_timeout=aiohttp.ClientTimeout(total=timeout_s), _preload_content=False
                )
                async with answer.response as response:
                    if response.status >= 400 and response.status not in fine:
                        raise ApiTrouble(what, response.status, (await response.read()).decode(errors="replace"))
                    return bytes(await (response.content.readline() if first_line else response.read()))
        except (aiohttp.ClientError, TimeoutError, OSError, client.ApiException) as error:
            raise ApiTrouble(what, getattr(error, "status", 0) or 0, str(error) or type(error).__name__) from error


def _slices_of(node: str, driver: str) -> str:
    return f"spec.nodeName={node},spec.driver={driver}"
