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
from timeslice_benchmarks.usage import memory_mb

METHOD = "/echo.Echo/Call"
WAIT = "/echo.Echo/Wait"
MESSAGE = bytes(range(64))
"""About what an Acquire carries."""
CONCURRENT_CALLS = 64
MAX_PENDING = 100_000
ALL_ARRIVED_S = 0.5
"""That the memory of a server did not grow for so long tells that no call is on its way to it."""


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
    """A server that does nothing but answer (or, to Wait, does not), until `ended`."""

    async def answer(request: bytes, _: Any) -> bytes:
        return request

    async def wait(request: bytes, _: Any) -> bytes:
        await ended.wait()
        return request

    limits = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = grpc.aio.server(options=[(limit, MAX_PENDING) for limit in limits])
    handlers: dict[str, Any] = {
        "Call": grpc.unary_unary_rpc_method_handler(answer), "Wait": grpc.unary_unary_rpc_method_handler(wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
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


async def blocked_call_kb(address: str, pid: int, calls: int) -> float:
    """How much a bare server's memory grows with each call that it does not answer, in 1000 bytes."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(WAIT)
        before = memory_mb(pid)
        waiting = [asyncio.ensure_future(_wait(call)) for _ in range(calls)]
        grown, last = -1.0, before
        while last != grown:
            await asyncio.sleep(ALL_ARRIVED_S)
            grown, last = last, memory_mb(pid)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return (last - before) * 1000 / calls


async def _wait(call: Any) -> None:
    await call(MESSAGE)
