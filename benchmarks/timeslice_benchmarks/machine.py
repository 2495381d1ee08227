"""The machine that a figure was taken on: what a bare fsync and a bare gRPC call cost on it, in the same run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from timeslice_benchmarks.figures import quantile

METHOD = "/echo.Echo/Call"
MESSAGE = bytes(range(64))
"""About what an Acquire carries."""
CONCURRENT_CALLS = 64


def fsync_ms(folder: Path, times: int = 200) -> float:
    """The median time of a write of one page and an fsync in this folder, where the stores lie too."""
    took = []
    path = folder / "fsync"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for number in range(times):
            start = time.perf_counter()
            os.pwrite(fd, bytes(4096), number * 4096)
            os.fsync(fd)
            took.append((time.perf_counter() - start) * 1000)
    finally:
        os.close(fd)
        path.unlink()
    return quantile(took, 0.5)


def described(fsync: float) -> dict[str, Any]:
    """What a reader must know of the machine to compare figures; no name."""
    return {"cores": os.cpu_count(), "load_1min_at_the_end": round(os.getloadavg()[0], 2), "fsync_ms": round(fsync, 3)}


async def serve_echo(address: str, ready: Callable[[], None], ended: asyncio.Event) -> None:
    """A server that does nothing but answer, until `ended`."""

    async def answer(request: bytes, _: Any) -> bytes:
        return request

    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Call": handler}),))
    server.add_insecure_port(address)
    await server.start()
    ready()
    await ended.wait()
    await server.stop(None)


async def echo_pairs_ms(address: str, times: int) -> list[float]:
    """How long two bare calls take, one after the other: what an acquire and a yield take at least."""
    took = []
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(METHOD)
        await call(MESSAGE)
        for _ in range(times):
            start = time.perf_counter()
            await call(MESSAGE)
            await call(MESSAGE)
            took.append((time.perf_counter() - start) * 1000)
    return took


async def echo_calls_per_s(address: str, duration_s: float) -> float:
    """How many bare calls per second one client process gets answered, with many under way at a time."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(METHOD)
        await call(MESSAGE)
        done = 0
        start = time.perf_counter()

        async def repeat() -> None:
            nonlocal done
            while time.perf_counter() - start < duration_s:
                await call(MESSAGE)
                done += 1

        await asyncio.gather(*(repeat() for _ in range(CONCURRENT_CALLS)))
        return done / (time.perf_counter() - start)
