"""Messages between the agent and its driver workers: one per packet of a SOCK_SEQPACKET socket pair.

In Python's own marshal format, which takes a tenth of JSON's time: both ends are the same interpreter, and nobody else
holds an end.
"""

from __future__ import annotations

import marshal
import socket
from typing import Any

MAX_BYTES = 1 << 18
"""A message with the states of 5,000 processes is a quarter of this."""

Message = dict[str, Any]
"""Made of dicts, lists, tuples, str, numbers, bools and None; no subclass of one of these, such as an enum."""

STOP: Message = {"stop": True}
"""To a worker: do not go on to the next step. One that is on its last step, or has no request, ignores it."""

RELEASE: Message = {"release": True}
"""To a worker: steps that are held may begin."""


def encode(message: Message) -> bytes:
    data = marshal.dumps(message)
    if len(data) > MAX_BYTES:
        raise ValueError(f"a driver message of {len(data)} bytes; {MAX_BYTES} are allowed")
    return data


def decode(data: bytes) -> Message:
    try:
        message = marshal.loads(data)
    except (EOFError, TypeError, ValueError) as error:
        raise ValueError(f"not a driver message: {data[:64]!r}") from error
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
