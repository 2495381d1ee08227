"""Channels of grpc's asyncio side, counted: while one is open, a fork leaves the child without grpc."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc.aio

from timeslice._channel import merged_options
from timeslice._forks import FORKS


def open_channel(address: str, options: Iterable[tuple[str, Any]]) -> grpc.aio.Channel:
    """A channel of the running event loop with our options, except where `options` say otherwise.

    Raises:
        GrpcUnusableError: this process was forked from one in which grpc was in use, and grpc did not survive that.
    """
    FORKS.check_usable()
    channel = grpc.aio.insecure_channel(address, options=merged_options(options))
    FORKS.channel_opened()
    FORKS.aio_channels += 1
    return channel


async def close_channel(channel: grpc.aio.Channel) -> None:
    """Close a channel that `open_channel` made."""
    FORKS.aio_channels -= 1
    await channel.close()
