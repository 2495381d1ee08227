"""How the clients' gRPC channels are set up, and what a failed call says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from timeslice._core.calls import Status

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    # The servers allow a ping every 5 s, also without calls: a dead connection is known after 20 s at most.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Back within the 2 s that a restarted orchestrator waits for its clients (grpc's own default is 1 s to 2 min).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Not a backoff, in spite of its name: how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Retries are ours: they carry a request id, and they end when the caller's time does.
    ("grpc.enable_retries", 0),
]


def open_channel(address: str, options: Iterable[tuple[str, Any]]) -> grpc.Channel:
    """A channel with our options, except where `options` say otherwise. It connects at the first call."""
    merged = dict(CHANNEL_OPTIONS)
    merged.update(options)
    return grpc.insecure_channel(address, options=list(merged.items()))


def status_of(error: Any) -> Status:
    """The status of a failed call, a grpc.RpcError, as data."""
    code = error.code()
    details = error.details()
    # Of "failed to connect to all addresses; last error: ..." the end says what was wrong.
    return Status(code.name if code is not None else "UNKNOWN", (details or "").rpartition("last error: ")[2])
