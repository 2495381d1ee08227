"""How the clients' gRPC channels are set up, and what a failed call says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import grpc

from timeslice._core.calls import Status
from timeslice._forks import FORKS

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


ORCHESTRATOR_SERVICE_CONFIG = json.dumps(
    {"methodConfig": [{"name": [{"service": "timeslice_orchestrator.v1alpha1.TimeSliceOrchestratorService"}]}]}
)
"""Without a retry policy: grpc would repeat calls of which it cannot know whether that is safe. The client retries."""


def open_channel(address: str, options: Iterable[tuple[str, Any]]) -> grpc.Channel:
    """A channel with our options, except where `options` say otherwise. It connects at the first call.

    Raises:
        GrpcUnusableError: this process was forked from one in which grpc was in use, and grpc did not survive that.
    """
    FORKS.check_usable()
    channel = grpc.insecure_channel(address, options=merged_options(options))
    FORKS.channel_opened(channel)
    return channel


def merged_options(options: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Our options, except where `options` say otherwise."""
    merged = dict(CHANNEL_OPTIONS)
    merged.update(options)
    return list(merged.items())


def status_of(error: Any) -> Status:
    """The status of a failed call, a grpc.RpcError, as data."""
    code = error.code()
    details = error.details()
    # Of "failed to connect to all addresses; last error: ..." the end says what was wrong.
    return Status(code.name if code is not None else "UNKNOWN", (details or "").rpartition("last error: ")[2])
