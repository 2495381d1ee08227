"""An event loop that gRPC wakes once for all that has come, not once for each event."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVarTuple

GRPC_READER = ("grpc._cython.cygrpc", "PollerCompletionQueue._handle_events")
AT_ONCE = 4096

Arguments = TypeVarTuple("Arguments")


class ServerLoop(asyncio.SelectorEventLoop):
    """gRPC's poller writes a byte to a socket for each event; the reader handles all events that are there, and takes
    one byte. So of n events that come together, n - 1 bytes are left to wake the loop for nothing. This loop takes the
    others away first. An event is in gRPC's queue before its byte is written, so what was taken away is handled, and
    what comes later has a byte of its own. The orchestrator has a twin of this module.

    A gRPC that does this in another way is not recognised, and left alone.
    """

    def add_reader(self, fd: Any, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
        reader = getattr(callback, "func", None)
        name = (getattr(reader, "__module__", None), getattr(reader, "__qualname__", None))
        if name == GRPC_READER and isinstance(fd, socket.socket) and not args:
            super().add_reader(fd, partial(_once_for_all, fd, callback))
        else:
            super().add_reader(fd, callback, *args)


def _once_for_all(wakeups: socket.socket, handle_events: Callable[[], Any]) -> None:
    waiting = len(wakeups.recv(AT_ONCE, socket.MSG_PEEK))
    if waiting > 1:
        wakeups.recv(waiting - 1)
    handle_events()  # it takes the last byte
