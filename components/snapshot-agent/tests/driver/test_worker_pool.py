"""Worker processes: warm, replaced when they die, and never outliving the agent."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from snapshot_agent_server.driver.interface import DriverMissing
from snapshot_agent_server.driver.pool import Pool, WorkerDied

ECHO = """
import os, socket, sys, time
from snapshot_agent_server.driver.wire import MAX_BYTES, decode, encode
channel = socket.socket(fileno=int(sys.argv[1]))
channel.send(encode({"ready": {"pid": os.getpid()}}))
while data := channel.recv(MAX_BYTES):
    request = decode(data)
    if request.get("hang"):
        time.sleep(3600)
    if request.get("die"):
        sys.exit()
    channel.send(encode({"pid": os.getpid(), **request}))
"""

MISSING = """
import socket, sys
from snapshot_agent_server.driver.wire import encode
socket.socket(fileno=int(sys.argv[1])).send(encode({"missing": "no libcuda.so.1"}))
"""


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., object]:
    @asynccontextmanager
    async def make(warm: int = 1, program: str = ECHO) -> AsyncIterator[Pool]:
        script = tmp_path / "worker.py"
        script.write_text(program)
        pool = Pool(warm, (sys.executable, str(script)))
        await pool.start()
        try:
            yield pool
        finally:
            await pool.close()

    return make


async def test_a_warm_worker_is_used_again(make_pool: Callable[..., object]) -> None:
    async with make_pool() as pool:  # type: ignore[attr-defined]
        first, second = await pool.call({"n": 1}, 5.0), await pool.call({"n": 2}, 5.0)
        assert (first["n"], second["n"]) == (1, 2)
        assert first["pid"] == second["pid"]


async def test_a_call_that_hangs_costs_its_worker_and_nothing_else(make_pool: Callable[..., object]) -> None:
    async with make_pool() as pool:  # type: ignore[attr-defined]
        end = os.pidfd_open((await pool.call({}, 5.0))["pid"])
        with pytest.raises(TimeoutError):
            await pool.call({"hang": True}, 0.1)
        assert (await pool.call({"n": 1}, 10.0))["n"] == 1
        ended, _, _ = select.select([end], [], [], 5.0)
        assert ended == [end]
        os.close(end)


async def test_calls_run_side_by_side_beyond_the_warm_workers(make_pool: Callable[..., object]) -> None:
    async with make_pool(1) as pool:  # type: ignore[attr-defined]
        hanging = [asyncio.create_task(pool.call({"hang": True}, 3600.0)) for _ in range(3)]
        try:
            assert (await pool.call({"n": 7}, 10.0))["n"] == 7
        finally:
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)


async def test_a_worker_that_dies_in_the_middle_of_a_call_says_so(make_pool: Callable[..., object]) -> None:
    async with make_pool() as pool:  # type: ignore[attr-defined]
        with pytest.raises(WorkerDied):
            await pool.call({"die": True}, 5.0)
        assert (await pool.call({"n": 1}, 10.0))["n"] == 1


async def test_a_worker_that_was_killed_while_idle_is_replaced(make_pool: Callable[..., object]) -> None:
    async with make_pool() as pool:  # type: ignore[attr-defined]
        [pid] = pool.pids
        os.kill(pid, signal.SIGKILL)
        while True:
            try:
                reply = await pool.call({"n": 1}, 10.0)
                break
            except WorkerDied:  # the call was sent before its end was noticed
                pass
        assert reply["pid"] != pid


async def test_a_missing_driver_is_said_at_the_start(make_pool: Callable[..., object]) -> None:
    with pytest.raises(DriverMissing, match=r"no libcuda\.so\.1"):
        async with make_pool(2, MISSING):  # type: ignore[attr-defined]
            pass
