"""Requests to the API server, and what became of them: done, refused, certainly not sent, or unclear."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME

Object = dict[str, Any]
"""An object of the API as JSON has it."""

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""

GONE = 410
BUSY = 429
"""Too many requests; and what an API server says of a collection that it has just begun to serve."""
CONNECT_S = 3.0
"""How long a connection may take: within a cluster it takes a millisecond."""
TEXT_KEPT = 256


class ApiError(Exception):
    """A request did not succeed."""


class ApiRefused(ApiError):
    """The API server said no, and changed nothing."""

    def __init__(self, code: int, reason: str, text: str) -> None:
        super().__init__(f"the API server refuses it ({code} {reason}): {text}")
        self.code = code
        """HTTP status; an expired watch has 410 however it is told."""
        self.reason = reason
        self.text = text


class ApiUnreachable(ApiError):
    """The request was not sent, or the API server takes none now (429): nothing was changed."""


class ApiUnclear(ApiError):
    """The request was sent, or may have been, and no answer says what became of it."""


class NoCluster(Exception):
    """No API server is configured, or not so that it can be used. The text says what to set."""


class Requests(Protocol):
    """Who takes requests: see `ApiServer.request`."""

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None,
        content_type: str = ...,
    ) -> Object: ...


class ApiServer:
    """One API server. Made by `connect`; requests may run side by side."""

    def __init__(self, client: ApiClient, timeout_s: float = 5.0) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> Object:
        """Make a request and return the object that it is answered with.

        ApiRefused and ApiUnreachable: nothing was changed. ApiUnclear: it may have been. A cancelled request may have
        been done, too.
        """
        limit_s = self._timeout_s
        with _as_api_errors(
            f"the API server did not answer {method} {path} within {limit_s:g} s", f"{method} {path} was cut off"
        ):
            async with asyncio.timeout(limit_s):
                response = await self._send(
                    method, path, query, body, content_type,
                    aiohttp.ClientTimeout(total=limit_s, sock_connect=min(CONNECT_S, limit_s)))
                data = await response.read()
        if not 200 <= response.status < 300:
            raise _refusal(response.status, response.reason or "", data)
        answer = json.loads(data)
        assert isinstance(answer, dict)
        return answer

    async def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[Object]:
        """Yield the events of a watch until the server ends it.

        ApiUnclear: it broke, or nothing came for `silence_s`, bookmarks included. ApiRefused: with code 410, it must
        begin from a new list.
        """
        response = None
        try:
            with _as_api_errors(
                f"nothing came from the watch of {path} for {silence_s:g} s", f"the watch of {path} broke"
            ):
                async with asyncio.timeout(silence_s):
                    response = await self._send(
                        "GET", path, {**query, "watch": "true"}, None, JSON,
                        aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s))
                if response.status != 200:
                    raise _refusal(response.status, response.reason or "", await response.read())
                buffered = bytearray()
                async for chunk in response.content.iter_any():
                    buffered += chunk
                    *lines, rest = buffered.split(b"\n")
                    buffered = rest
                    for line in lines:
                        if line.strip():
                            yield _watched(bytes(line))
        finally:
            if response is not None:
                response.close()

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        verb, url, headers, body, _ = await self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), body=body,
            header_params={"Accept": JSON, "Content-Type": content_type}, auth_settings=["BearerToken"])
        answered = await self._client.call_api(verb, url, headers, body, _request_timeout=limits)
        response: aiohttp.ClientResponse = answered.response
        return response


@asynccontextmanager
async def connect(env: Mapping[str, str], timeout_s: float = 5.0) -> AsyncIterator[ApiServer]:
    """The API server of the cluster that this process runs in, else the one of $KUBECONFIG's current context.

    NoCluster: neither can be used.
    """
    configuration = Configuration()
    try:
        if env.get(SERVICE_HOST_ENV_NAME):
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=env.get("KUBECONFIG") or None, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError) as error:
        raise NoCluster(
            f"no API server can be used ({error}); run in a pod with a ServiceAccount's token, or set KUBECONFIG"
        ) from error
    async with ApiClient(configuration) as client:
        yield ApiServer(client, timeout_s)


@contextmanager
def _as_api_errors(silent: str, cut: str) -> Iterator[None]:
    """What goes wrong below HTTP, as ApiError: `silent` is said after a timeout, `cut` before what broke it else."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise ApiUnreachable(f"the API server cannot be reached: {error}") from error
    except TimeoutError as error:
        raise ApiUnclear(silent) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ApiUnclear(f"{cut}: {error!r}") from error


def _watched(line: bytes) -> Object:
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise ApiRefused(status.get("code", 0), status.get("reason", ""), status.get("message", "")[:TEXT_KEPT])
    assert isinstance(event, dict)
    return event


def _refusal(code: int, reason: str, body: bytes) -> ApiError:
    """What an answer other than success means. Of a 5xx nobody knows what was done, but for a store that is full; a 429
    asks to come again, so it is no refusal."""
    text = body.decode(errors="replace")
    try:
        status = json.loads(text)
        reason, text = status.get("reason", reason), status.get("message", text)
    except (ValueError, AttributeError):
        pass
    text = text[:TEXT_KEPT]
    if code == BUSY:
        return ApiUnreachable(f"the API server takes no requests now ({code} {reason}): {text}")
    if code < 500 or "database space exceeded" in text:
        return ApiRefused(code, reason, text)
    return ApiUnclear(f"the API server answers {code} {reason}: {text}")
