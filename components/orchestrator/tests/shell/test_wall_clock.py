"""Row 20: the wall clock of the running orchestrator jumps two hours both ways, and nothing comes of it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cluster import LIMIT_S, Cluster, cluster
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

TTL_S = 2.0


def faketime(folder: Path) -> dict[str, str]:
    """Variables for a process whose wall clock follows what `set_offset` writes, and whose monotonic clock does not."""
    library = os.environ.get("LIBFAKETIME", "")
    if not os.path.isfile(library):
        pytest.fail(
            "LIBFAKETIME does not name libfaketime.so.1; Bazel sets it, elsewhere install the package libfaketime and"
            " set LIBFAKETIME=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
    set_offset(folder, 0)
    return {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(folder / "offset"), "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1"}


def set_offset(folder: Path, seconds: int) -> None:
    """The wall clock is from now on this far from the real one."""
    new = folder / "offset.new"
    new.write_text(f"{seconds:+d}\n")
    new.replace(folder / "offset")


@asynccontextmanager
async def cluster_with_clock(folder: Path, *flags: str) -> AsyncIterator[Cluster]:
    """A cluster whose orchestrator has a wall clock of its own."""
    async with cluster(folder, *flags, env=faketime(folder)) as up:
        try:
            yield up
        finally:
            assert up.process.process is not None
            await up.process.kill()
            for left_behind in ("faketime_shm", "sem.faketime_sem"):
                remove(f"/dev/shm/{left_behind}_{up.process.process.pid}")


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


async def wall_clock(up: Cluster) -> datetime:
    """What the orchestrator's wall clock says."""
    watch = up.stub.WatchGroups(pb.WatchGroupsRequest())
    event = await watch.read()
    watch.cancel()
    return event.time.ToDatetime(UTC)


async def test_row_20_leases_waiters_and_slices_do_not_notice_a_jump_of_the_wall_clock(tmp_path: Path) -> None:
    async with cluster_with_clock(tmp_path, "--session-ttl-s", str(TTL_S)) as up:
        client, _ = up.client()
        session = client.Session()
        renewal = pb.SessionRequest(session_id="s-a", job_id="a", ttl_ms=int(TTL_S * 1000))
        await session.write(renewal)
        assert (await session.read()).opened.ttl_ms == TTL_S * 1000
        lease = await up.hold("a", "a-1", session_id="s-a")
        up.agent.put("a", "g")
        waiting = up.acquire("b", "b-1")
        await up.queued(1)
        for hours in (2, -2, 2):
            set_offset(tmp_path, hours * 3600)
            jumped = await wall_clock(up) - datetime.now(UTC)
            assert abs(jumped - timedelta(hours=hours)) < timedelta(minutes=1)
            slice_s = 0.3
            started = asyncio.get_running_loop().time()
            answer = await up.acquire("c", "c-1", wait_ms=int(slice_s * 1000))
            assert answer.queued
            assert slice_s <= asyncio.get_running_loop().time() - started < LIMIT_S
            await session.write(renewal)
            opened = (await session.read()).opened
            assert [held.fencing_token for held in opened.leases] == [lease.fencing_token]
            status = await up.status()
            assert status.lease.fencing_token == lease.fencing_token
            assert not status.conditions
            assert not waiting.done()
        await up.give_back(lease)
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).leases[0].job_id == "b"


async def test_row_20_a_lease_still_ends_by_time_after_a_jump_back(tmp_path: Path) -> None:
    async with cluster_with_clock(tmp_path, "--session-ttl-s", "0.3") as up:
        client, channel = up.client()
        session = client.Session()
        await session.write(pb.SessionRequest(session_id="s-a", job_id="a", ttl_ms=300))
        await session.read()
        await up.hold("a", "a-1", session_id="s-a")
        waiting = up.acquire("b", "b-1")
        await up.queued(1)
        set_offset(tmp_path, -7200)
        await channel.close()
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).leases[0].job_id == "b"
