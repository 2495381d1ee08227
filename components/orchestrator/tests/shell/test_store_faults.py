"""Writes that fail, hang or are cut off: memory and record never differ, and the answer tells which it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster import LIMIT_S, failure
from orchestrator.agents.fake import FakeAgent
from orchestrator.config import OrchestratorConfig
from orchestrator.core.types import GroupId
from orchestrator.infra.static import StaticInfra, parse_agents
from orchestrator.serve import Served, lead
from orchestrator.store.interface import StoreUnclear
from orchestrator.store.memory import Disk, MemoryStore
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

CONFIG = OrchestratorConfig(backoff_s=0.02, reattach_s=0.2, stop_grace_s=0.2)
G = GroupId("g")


@asynccontextmanager
async def led(folder: Path, disk: Disk, agent: FakeAgent) -> AsyncIterator[tuple[MemoryStore, Any, asyncio.Event]]:
    """An orchestrator in this process, on a store that fails on demand: (store, stub, stop)."""
    store, stop, is_up = MemoryStore(disk), asyncio.Event(), asyncio.Event()

    def ready(_: Served) -> None:
        is_up.set()

    await agent.start(f"unix:{folder}/a.sock")
    infra = StaticInfra(parse_agents([f"n1=unix:{folder}/a.sock,group=g"]))
    leading = asyncio.create_task(lead(CONFIG, infra, [f"unix:{folder}/o.sock"], store, stop, ready))
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait([leading, asyncio.create_task(is_up.wait())], return_when=asyncio.FIRST_COMPLETED)
    async with grpc.aio.insecure_channel(f"unix:{folder}/o.sock") as channel:
        try:
            yield store, pb_grpc.TimeSliceOrchestratorServiceStub(channel), stop  # type: ignore[no-untyped-call]
        finally:
            store.gate = None
            stop.set()
            await leading
            await agent.stop()
    assert agent.violations == []


def node() -> FakeAgent:
    return FakeAgent({"GPU-0": ["g"]})


async def hold(stub: Any, job: str, request: str = "") -> pb.Lease:
    reply = await stub.Acquire(pb.AcquireRequest(job_id=job, group_id="g", request_id=request), timeout=LIMIT_S)
    return reply.leases[0]


def give_back(stub: Any, lease: pb.Lease) -> Any:
    return stub.Yield(pb.YieldRequest(
        job_id=lease.job_id, group_id="g", fencing_token=lease.fencing_token), timeout=LIMIT_S)


async def is_released(stub: Any, lease: pb.Lease) -> bool:
    """Yield; whether the release is recorded. UNAVAILABLE says that it is not yet."""
    try:
        answered = await give_back(stub, lease)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return bool(answered.success)


async def repeat_until_released(stub: Any, lease: pb.Lease) -> None:
    """What the refusal tells a client to do."""
    async with asyncio.timeout(LIMIT_S):
        while not await is_released(stub, lease):
            pass


async def shown(stub: Any) -> pb.GroupStatus:
    return (await stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id="g"))).group


async def has_condition(stub: Any, kind: str, wanted: bool) -> None:
    """Ask until the group shows this condition, or does not."""
    async with asyncio.timeout(LIMIT_S):
        while (kind in {c.type for c in (await shown(stub)).conditions}) != wanted:
            pass


@pytest.mark.parametrize("is_written", [True, False])
async def test_row_39_a_yield_cut_off_at_the_store_is_decided_by_the_record(tmp_path: Path, is_written: bool) -> None:
    disk = Disk()
    async with led(tmp_path, disk, node()) as (store, stub, _):
        lease = await hold(stub, "a")
        store.next_writes.append((StoreUnclear("cut off"), is_written))
        assert await is_released(stub, lease) == is_written
        await repeat_until_released(stub, lease)
        assert disk.records[G].lease is None
        assert not (await shown(stub)).HasField("lease")
        assert (await hold(stub, "b")).fencing_token > lease.fencing_token


async def test_a_yield_whose_write_failed_is_not_answered_as_a_success(tmp_path: Path) -> None:
    disk = Disk()
    async with led(tmp_path, disk, node()) as (store, stub, _):
        lease = await hold(stub, "a")
        store.is_full = True
        assert not await is_released(stub, lease)
        assert disk.records[G].lease is not None
        store.is_full = False
        await repeat_until_released(stub, lease)
        assert disk.records[G].lease is None


async def test_row_35_a_full_disk_grants_nothing_and_recovers_by_itself(tmp_path: Path) -> None:
    disk = Disk()
    async with led(tmp_path, disk, node()) as (store, stub, _):
        lease = await hold(stub, "a")
        store.is_full = True
        yielding = asyncio.ensure_future(answer(give_back(stub, lease)))
        await has_condition(stub, "StoreUnavailable", True)
        waiting = asyncio.ensure_future(hold(stub, "b"))
        store.is_full = False
        assert (await waiting).job_id == "b"
        await asyncio.gather(yielding, return_exceptions=True)
        await has_condition(stub, "StoreUnavailable", False)


async def answer(call: Any) -> Any:
    return await call


async def test_a_grant_is_durable_before_it_is_sent(tmp_path: Path) -> None:
    disk = Disk()
    async with led(tmp_path, disk, node()) as (store, stub, _):
        await hold(stub, "a")
        await give_back(stub, await hold(stub, "a"))
        store.gate = asyncio.Event()
        waiting = asyncio.ensure_future(hold(stub, "b"))
        for _ in range(3):  # other calls are answered meanwhile
            await shown(stub)
        assert not waiting.done()
        store.gate.set()
        lease = await waiting
        assert disk.records[G].lease is not None
        assert disk.records[G].lease.token == lease.fencing_token


async def test_row_19_an_orchestrator_whose_store_was_taken_over_stops_and_grants_nothing(tmp_path: Path) -> None:
    disk = Disk()
    agent = node()
    async with led(tmp_path, disk, agent) as (_, stub, _stop):
        lease = await hold(stub, "a")
        MemoryStore(disk)
        code, _ = await failure(give_back(stub, lease))
        assert code is grpc.StatusCode.UNAVAILABLE
    assert disk.records[G].lease is not None
    assert disk.records[G].lease.token == lease.fencing_token
