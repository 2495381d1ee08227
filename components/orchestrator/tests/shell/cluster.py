"""A real orchestrator process, fake agents on real sockets, and clients as a test needs them."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from orchestrator.agents.fake import FakeAgent
from orchestrator_process import OrchestratorProcess
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

LIMIT_S = 20.0
LOOK_AGAIN_S = 0.05
"""Some of what status shows comes with time alone, for which there is no event."""
QUICK = ("--reattach-s", "0.5", "--claims-wait-s", "0.5", "--backoff-s", "0.02")
"""Times for tests that would wait for the defaults."""


@dataclass
class Cluster:
    """One orchestrator and its nodes' agents. `stub` calls it; make more with `client`."""

    folder: Path
    process: OrchestratorProcess
    agents: dict[str, FakeAgent]
    stub: Any = None
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def client(self) -> tuple[Any, grpc.aio.Channel]:
        """A client with a connection of its own."""
        channel = grpc.aio.insecure_channel(f"unix:{self.folder}/o.sock", options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)])
        self.channels.append(channel)
        return pb_grpc.TimeSliceOrchestratorServiceStub(channel), channel

    @property
    def agent(self) -> FakeAgent:
        """The only node's agent."""
        [agent] = self.agents.values()
        return agent

    async def restart(self) -> None:
        """kill -9 the orchestrator and start another one on the same state."""
        await self.process.kill()
        await self.process.start()

    def acquire(
        self, job: str, request: str = "", group: str = "g", **fields: Any
    ) -> "asyncio.Task[pb.AcquireResponse]":
        """An Acquire under way."""
        call = self.stub.Acquire(
            pb.AcquireRequest(job_id=job, group_id=group, request_id=request, **fields), wait_for_ready=True)
        return asyncio.ensure_future(_answer(call))

    async def hold(self, job: str, request: str = "", group: str = "g", **fields: Any) -> pb.Lease:
        """Acquire, and the lease."""
        async with asyncio.timeout(LIMIT_S):
            reply = await self.acquire(job, request, group, **fields)
        assert reply.success
        return reply.leases[0]

    async def give_back(self, lease: pb.Lease) -> pb.YieldResponse:
        """Yield with the lease's token."""
        return await self.stub.Yield(pb.YieldRequest(
            job_id=lease.job_id, group_id=lease.group_id, fencing_token=lease.fencing_token), timeout=LIMIT_S)

    async def status(self, group: str = "g") -> pb.GroupStatus:
        answer = await self.stub.GetGroupStatus(
            pb.GetGroupStatusRequest(group_id=group), timeout=LIMIT_S, wait_for_ready=True)
        return answer.group

    async def shows(self, wanted: Any, group: str = "g") -> pb.GroupStatus:
        """Wait until the group's status is as wanted; looked at after every event, and as time passes."""
        async with asyncio.timeout(LIMIT_S):
            watch = self.stub.WatchGroups(pb.WatchGroupsRequest(group_ids=[group]), wait_for_ready=True)
            event = asyncio.ensure_future(watch.read())
            try:
                while not wanted(status := await self.status(group)):
                    await asyncio.wait([event], timeout=LOOK_AGAIN_S)
                    if event.done():
                        assert event.result() is not grpc.aio.EOF
                        event = asyncio.ensure_future(watch.read())
                return status
            finally:
                event.cancel()
                watch.cancel()

    async def queued(self, depth: int, group: str = "g") -> None:
        """Wait until so many wait."""
        await self.shows(lambda status: status.waiter_queue_depth == depth, group)

    async def recorded(self, depth: int) -> None:
        """Wait until so many have their place on record, too: one is shown before that."""
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/state/orchestrator.db?mode=ro", uri=True)) as db:
            async with asyncio.timeout(LIMIT_S):
                while db.execute("SELECT count(*) FROM waiters").fetchone() != (depth,):  # noqa: ASYNC110 - a file
                    await asyncio.sleep(LOOK_AGAIN_S)


@asynccontextmanager
async def cluster(
    folder: Path,
    *more: str,
    nodes: dict[str, FakeAgent] | None = None,
    groups: str = "group=g",
    env: dict[str, str] | None = None,
    are_started: bool = True,
) -> AsyncIterator[Cluster]:
    """An orchestrator whose nodes (default: n1) all serve these groups; the agents are started first, or not at all."""
    agents = {"n1": FakeAgent({"GPU-0": ["g"]})} if nodes is None else nodes
    flags = ["--listen", f"unix:{folder}/o.sock", "--state-dir", f"{folder}/state", *QUICK, *more]
    for name, agent in agents.items():
        if are_started:
            await agent.start(f"unix:{folder}/{name}.sock")
        flags += ["--agent", f"{name}=unix:{folder}/{name}.sock,{groups}"]
    process = OrchestratorProcess(flags, env)
    up = Cluster(folder, process, agents)
    up.stub, _ = up.client()
    try:
        await process.start()
        yield up
    finally:
        for channel in up.channels:
            await channel.close()
        await process.kill()
        for agent in agents.values():
            await agent.stop()
    for name, agent in agents.items():
        assert agent.violations == [], f"node {name}: two jobs could touch the device at once"
    assert process.errors == ""


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async with asyncio.timeout(LIMIT_S):
            await call
    return failed.value.code(), failed.value.details() or ""


async def _answer(call: Any) -> pb.AcquireResponse:
    return await call  # type: ignore[no-any-return]
