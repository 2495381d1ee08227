"""Messages between the agent and its driver workers: JSON, one message per packet of a SOCK_SEQPACKET socket pair."""

from __future__ import annotations

import json
import socket
from typing import Any

MAX_BYTES = 1 << 18
"""A message with the states of 5,000 processes is a quarter of this."""

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"a driver message of {len(data)} bytes; {MAX_BYTES} are allowed")
    return data


def decode(data: bytes) -> Message:
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"not a driver message: {data[:64]!r}")
    return message


def pair() -> tuple[socket.socket, socket.socket]:
    """The agent's end, which does not block, and the worker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES * 2)
    ours.setblocking(False)
    return ours, theirs
