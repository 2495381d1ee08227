"""gRPC wakes the loop once for what comes together, and nothing that comes is missed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from snapshot_agent_server.grpc_wakeups import GRPC_READER, ServerLoop

CALLS = 200
METHOD = "/echo.Echo/Call"


class CountingLoop(ServerLoop):
    """Counts how often gRPC's reader is called, and how often it finds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.called = self.in_vain = self.recognised = 0

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        reader = getattr(callback, "func", None)
        if (getattr(reader, "__module__", None), getattr(reader, "__qualname__", None)) == GRPC_READER:
            self.recognised += 1

            def counted() -> None:
                before = len(self._ready)  # type: ignore[attr-defined]
                callback()
                self.called += 1
                self.in_vain += len(self._ready) == before  # type: ignore[attr-defined]

            wrapped = partial(counted)
            counted.__module__, counted.__qualname__ = GRPC_READER
            super().add_reader(fd, wrapped, *args)
        else:
            super().add_reader(fd, callback, *args)


async def echo_many_at_once() -> None:
    async def answer(request: bytes, _: Any) -> bytes:
        return request

    server = grpc.aio.server()
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(METHOD)
        for n in range(3):
            messages = [b"%d/%d" % (n, number) for number in range(CALLS)]
            assert await asyncio.gather(*(call(message, timeout=30) for message in messages)) == messages
    await server.stop(None)


def test_every_call_is_answered_and_no_waking_is_in_vain() -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        runner.run(echo_many_at_once())
        assert loop.recognised, "this gRPC wakes the loop in another way: grpc_wakeups.py is of no use with it"
        assert loop.called > 0
        assert loop.in_vain < loop.called / 4


def test_other_readers_are_left_alone() -> None:
    async def read() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def ready(count: int) -> None:
            asyncio.get_running_loop().remove_reader(ours)
            got.set_result(ours.recv(count))

        asyncio.get_running_loop().add_reader(ours, ready, 3)
        theirs.send(b"abcdef")
        read = await got
        ours.close()
        theirs.close()
        return read

    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        assert runner.run(read()) == b"abc"
