"""Serving the kubelet on a unix socket in one of its folders."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import grpc

from gpu_mock_kubernetes.config import UNIX_SOCKET_PATH_MAX

STOP_GRACE_S = 1.0
"""For answers under way. A stream (ListAndWatch) is cut off after it."""


class SocketPathTooLong(Exception):
    """The kernel takes no such path for a socket."""


@contextlib.asynccontextmanager
async def served(
    sockets: Sequence[Path], add_services: Callable[[grpc.aio.Server], None]
) -> AsyncIterator[grpc.aio.Server]:
    """Serve on these sockets until the block ends; then they are gone.

    What a killed predecessor left there is replaced. The last socket is made last: by then the others are served.

    Raises:
        OSError: a folder is missing or cannot be written.
    """
    server = grpc.aio.server()
    add_services(server)
    for path in sockets:
        if len(str(path)) > UNIX_SOCKET_PATH_MAX:
            raise SocketPathTooLong(f"{path} is longer than {UNIX_SOCKET_PATH_MAX} characters")
        path.unlink(missing_ok=True)
        try:
            server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {path}: {error}") from error
    try:
        await server.start()
        yield server
    finally:
        for path in reversed(sockets):  # the kubelet takes a plugin for gone when its socket is
            path.unlink(missing_ok=True)
        await server.stop(STOP_GRACE_S)
