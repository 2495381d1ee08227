"""Clients by the hundred in one process: bare gRPC calls, without the client library's threads."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Sequence
from typing import Any

import grpc

from timeslice_benchmarks.installation import BenchmarkFailed
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

CHANNELS = 4
CALL_LIMIT_S = 120.0


class Load:
    """Some connections to an orchestrator, used in turn."""

    def __init__(self, address: str) -> None:
        self._channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CHANNELS)]
        stubs = [
            pb_grpc.TimeSliceOrchestratorServiceStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]
        self._stubs = itertools.cycle(stubs)

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    async def acquire(self, group: str, job: str) -> int:
        """Wait for the lease; its fencing token."""
        request = pb.AcquireRequest(job_id=job, group_id=group, request_id=uuid.uuid4().hex)
        reply: Any = await next(self._stubs).Acquire(request, timeout=CALL_LIMIT_S)
        return int(reply.leases[0].fencing_token)

    async def give_back(self, group: str, job: str, token: int) -> None:
        await next(self._stubs).Yield(
            pb.YieldRequest(job_id=job, group_id=group, fencing_token=token), timeout=CALL_LIMIT_S)

    async def status(self, group: str) -> pb.GroupStatus:
        reply: Any = await next(self._stubs).GetGroupStatus(
            pb.GetGroupStatusRequest(group_id=group), timeout=CALL_LIMIT_S)
        status: pb.GroupStatus = reply.group
        return status

    async def queued(self, groups: Sequence[str], depth: int) -> None:
        """Wait until so many wait in each of these groups; one look per pause, while the load comes in."""
        deadline = time.monotonic() + CALL_LIMIT_S
        for group in groups:
            while (await self.status(group)).waiter_queue_depth < depth:
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"{depth} calls did not queue on group {group} in time")
                await asyncio.sleep(0.05)

    async def rounds_ms(self, group: str, job: str, times: int) -> list[float]:
        """How long acquire and yield take, one after the other, when nobody else wants the group."""
        took = []
        for _ in range(times):
            start = time.perf_counter()
            await self.give_back(group, job, await self.acquire(group, job))
            took.append((time.perf_counter() - start) * 1000)
        return took

    async def take_turns(self, groups: Sequence[str], duration_s: float) -> list[float]:
        """Two jobs of each group want it all the time; when each lease was granted (seconds, monotonic clock)."""
        granted: list[float] = []
        stop = time.monotonic() + duration_s

        async def work(group: str, job: str) -> None:
            while time.monotonic() < stop:
                token = await self.acquire(group, job)
                granted.append(time.monotonic())
                await self.give_back(group, job, token)

        await asyncio.gather(*(work(group, f"{group}-j{number}") for group in groups for number in (0, 1)))
        return granted

    async def drain_ms(self, group: str, waiters: int, handoffs: int) -> list[float]:
        """One job holds the group, others wait: how long each handoff takes when each gives back at once.

        At most `handoffs` are taken; who waits on then is cancelled.
        """
        holder = f"{group}-j0"
        token = await self.acquire(group, holder)
        released = 0.0
        took: list[float] = []
        enough = asyncio.Event()

        async def wait(job: str) -> None:
            nonlocal released
            mine = await self.acquire(group, job)
            took.append((time.perf_counter() - released) * 1000)
            if len(took) >= handoffs:
                enough.set()
            await self.give_back(group, job, mine)
            released = time.perf_counter()

        tasks = [asyncio.create_task(wait(f"{group}-j{number}")) for number in range(1, waiters + 1)]
        try:
            await self.queued([group], waiters)
            await self.give_back(group, holder, token)
            released = time.perf_counter()
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    await enough.wait()
            except TimeoutError:
                raise BenchmarkFailed(f"{len(took)} of {handoffs} handoffs came in {CALL_LIMIT_S:g} s") from None
            if handoffs >= waiters:
                await asyncio.gather(*tasks)  # the last one gives back, too: the group is free for what comes next
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception) and not isinstance(ended, grpc.aio.AioRpcError):
                    raise ended
        return took[:handoffs]
