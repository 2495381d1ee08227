"""Lists and watches from the API server, with errors as one exception. Nothing here writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from kubernetes.aio import client, config

LIST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
MAX_ERROR_CHARS = 256

Json = Mapping[str, Any]


class ApiError(Exception):
    """A request did not succeed. `code`: the HTTP status, 0 if there was no answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(" ".join(text.split())[:MAX_ERROR_CHARS])
        self.code = code


class Api(Protocol):
    """What the watch needs of an API server."""

    async def list(self, path: str, query: Mapping[str, str]) -> Json:
        """The list, as of now. Raises: ApiError."""
        ...

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Json]:
        """Events, until the server ends the stream. Raises: ApiError, also after `silence_s` without a byte, and for an
        event of type ERROR."""
        ...


class ClusterApi:
    """The API server, as a pod's service account, or by a kubeconfig where there is none."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    async def connected(cls, env: Mapping[str, str]) -> ClusterApi:
        """Nothing is sent yet. Raises: ApiError if nothing says where the server is."""
        settings = client.Configuration()
        try:
            if env.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                path = env.get("KUBECONFIG") or str(Path(env.get("HOME", "/")) / ".kube/config")
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=path, client_configuration=settings
                )
        except (config.ConfigException, OSError) as error:
            raise ApiError(
                0,
                f"nothing says where the API server is ({error}); run as a pod with a service account, or set"
                " KUBECONFIG",
            ) from error
        return cls(client.ApiClient(settings))

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def list(self, path: str, query: Mapping[str, str]) -> Json:
        response = await self._get(path, query, aiohttp.ClientTimeout(LIST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S))
        try:
            found = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _broken(error) from error
        finally:
            response.release()
        if not isinstance(found, dict):
            raise ApiError(response.status, "the answer is no list")
        return found

    async def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Json]:
        limits = aiohttp.ClientTimeout(None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        response = await self._get(path, {**query, "watch": "true"}, limits)
        try:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _broken(error) from error
        finally:
            response.close()

    async def _get(self, path: str, query: Mapping[str, str], limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The answer, its body unread. Raises: ApiError."""
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                "GET", path, query_params=list(query.items()), auth_settings=["BearerToken"]
            )
            answer = await self._api.call_api(method, url, header_params=headers, _request_timeout=limits)
        except (aiohttp.ClientError, TimeoutError, OSError, client.ApiException, config.ConfigException) as error:
            raise _broken(error) from error
        response: aiohttp.ClientResponse = answer.response
        if response.status != 200:
            try:
                async with asyncio.timeout(LIST_TIMEOUT_S):
                    body = await response.content.read(MAX_ERROR_CHARS * 4)
            except (aiohttp.ClientError, TimeoutError, OSError):
                body = b""
            response.close()
            raise ApiError(response.status, f"{response.status} {response.reason}: {_message(body)}")
        return response


def _event(line: bytes) -> Json:
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise ApiError(int(status.get("code", 0)), f"{status.get('reason', '')}: {status.get('message', '')}")
    found: Json = event
    return found


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def _broken(error: BaseException) -> ApiError:
    return ApiError(0, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
