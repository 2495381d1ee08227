"""From ordering a Snapshot (or Restore) to its pushed end, at one real agent on a mock GPU."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc

from orchestrator.agents.order_stream import OrderStream
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc
from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, of_samples, quantile
from timeslice_benchmarks.handoff import DRIVER, SMALL_MIB, Handoff
from timeslice_benchmarks.installation import GROUP, BenchmarkFailed, Installation
from timeslice_demo.ground_truth import JournalLine

TIMES = Size(400, 100, 4)
REST_S = 0.02
"""What comes after so long finds processors asleep and their caches taken by others."""
EPOCH = 1 << 30
"""Above that of the orchestrator which let the job take its memory."""
END_LIMIT_S = 10.0


def run(effort: str) -> list[Figure]:
    with Installation() as place:
        times = TIMES.of(effort)
        progress(f"a real agent on a mock GPU, three times {times} snapshots and restores")
        agent = place.agent()
        orchestrator = place.orchestrator()
        job = place.job("a", SMALL_MIB)
        job.answer()
        job.call("start")
        orchestrator.stop()
        before = agent.usage()
        ordered, called, rested = asyncio.run(_all(place.agents["n0"], times))
        cpu = agent.usage().since(before).cpu_ms / (3 * times)
        journal = place.journal()
    notes: dict[str, float | str] = {"CPU ms of agent and workers per snapshot and restore": cpu}
    return [
        _figure("Snapshot order to pushed end, driver time excluded", ordered[0], journal, 2.0, notes),
        _figure("Restore order to pushed end, driver time excluded", ordered[1], journal),
        _figure("Snapshot as a call of its own", called[0], journal),
        _figure(f"Snapshot order after {REST_S * 1000:g} ms of rest", rested[0], journal),
    ]


def _figure(
    what: str, ends: list[Handoff], journal: list[JournalLine], budget: float | None = None,
    notes: Mapping[str, float | str] | None = None,
) -> Figure:
    driver = [one.ms_within(journal, DRIVER) for one in ends]
    return of_samples(
        what, [one.ms - d for one, d in zip(ends, driver, strict=True)], budget=budget,
        notes={"driver ms p50": quantile(driver, 0.5), **(notes or {})})


Order = Callable[[str, Any], Awaitable[Any]]
"""Of its kind ("snapshot") and request."""


async def _all(address: str, times: int) -> list[tuple[list[Handoff], list[Handoff]]]:
    """Snapshots and restores as orders on a stream, as calls, and as orders again with rests in between."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
        watch = stub.Watch(pb.WatchRequest(leader_epoch=EPOCH, takes_together=True))
        told = await watch.read()
        token = max((fence.fencing_token for fence in told.snapshot.fences if fence.group == GROUP), default=0)
        agent = Agent(watch, token)
        stream = OrderStream(stub)
        order = partial(stream.order, timeout_s=END_LIMIT_S)
        try:
            return [
                await agent.operate(order, times),
                await agent.operate(lambda kind, request: getattr(stub, kind.capitalize())(request), times),
                await agent.operate(order, times, REST_S),
            ]
        finally:
            stream.close()
            watch.cancel()


class Agent:
    """Asked as an orchestrator asks: a higher token with each snapshot, the end heard on a Watch stream."""

    def __init__(self, watch: Any, token: int) -> None:
        self._watch = watch
        self._token = token
        self._ids = itertools.count(1)

    async def operate(self, order: Order, times: int, rest_s: float = 0.0) -> tuple[list[Handoff], list[Handoff]]:
        """So many snapshots, each with its restore."""
        snapshots, restores = [], []
        for _ in range(times):
            self._token += 1
            snapshots.append(await self._one(order, "snapshot", pb.SnapshotRequest))
            await asyncio.sleep(rest_s)
            restores.append(await self._one(order, "restore", pb.RestoreRequest))
            await asyncio.sleep(rest_s)
        return snapshots, restores

    async def _one(self, order: Order, kind: str, request: Any) -> Handoff:
        operation = f"b{next(self._ids)}"
        start = time.monotonic_ns()
        asked = asyncio.ensure_future(order(kind, request(
            job_id="a", group=GROUP, operation_id=operation, fencing_token=self._token, leader_epoch=EPOCH)))
        async with asyncio.timeout(END_LIMIT_S):
            while (message := await self._watch.read()) is not grpc.aio.EOF:
                ended_ns = time.monotonic_ns()
                for event in message.together or (message,):
                    if event.operation.operation_id == operation:
                        await asked
                        if event.operation.result.status != pb.OPERATION_STATUS_COMPLETE:
                            raise BenchmarkFailed(f"operation {operation} failed: {event.operation.result.error}")
                        return Handoff(start, ended_ns)
        raise BenchmarkFailed("the agent ended its stream")
