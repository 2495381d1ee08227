"""From calling Snapshot (or Restore) to its pushed end, at one real agent on a mock GPU."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc
from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, of_samples, quantile
from timeslice_benchmarks.handoff import DRIVER, SMALL_MIB, Handoff
from timeslice_benchmarks.installation import GROUP, BenchmarkFailed, Installation
from timeslice_demo.ground_truth import JournalLine

TIMES = Size(500, 100, 4)
PAUSE_S = 0.02
EPOCH = 1 << 30
"""Above that of the orchestrator which let the job take its memory."""
END_LIMIT_S = 10.0


def run(effort: str) -> list[Figure]:
    with Installation() as place:
        times = TIMES.of(effort)
        progress(f"a real agent on a mock GPU, {times} snapshots and restores")
        agent = place.agent()
        orchestrator = place.orchestrator()
        job = place.job("a", SMALL_MIB)
        job.answer()
        job.call("start")
        orchestrator.stop()
        before = agent.usage()
        snapshots, restores = asyncio.run(_operations(place.agents["n0"], times))
        cpu = agent.usage().since(before).cpu_ms / times
        journal = place.journal()
        return [
            _figure("Snapshot call to pushed end, driver time excluded", snapshots, journal, 2.0, cpu),
            _figure("Restore call to pushed end, driver time excluded", restores, journal, None, None),
        ]


def _figure(
    what: str, ends: list[Handoff], journal: list[JournalLine], budget: float | None, cpu_ms: float | None
) -> Figure:
    driver = [one.ms_within(journal, DRIVER) for one in ends]
    notes: dict[str, float | str] = {"driver ms p50": quantile(driver, 0.5)}
    if cpu_ms is not None:
        notes["CPU ms of agent and workers per snapshot and restore"] = cpu_ms
    return of_samples(what, [one.ms - d for one, d in zip(ends, driver, strict=True)], budget=budget, notes=notes)


async def _operations(address: str, times: int) -> tuple[list[Handoff], list[Handoff]]:
    """As an orchestrator does it: a higher token with each, the end heard on a Watch stream."""
    ids = itertools.count(1)
    snapshots, restores = [], []
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
        watch = stub.Watch(pb.WatchRequest(leader_epoch=EPOCH, takes_together=True))
        told = await watch.read()
        token = max((fence.fencing_token for fence in told.snapshot.fences if fence.group == GROUP), default=0)
        for _ in range(times):
            token += 1
            snapshots.append(await _operation(stub.Snapshot, pb.SnapshotRequest, watch, f"b{next(ids)}", token))
            await asyncio.sleep(PAUSE_S)
            restores.append(await _operation(stub.Restore, pb.RestoreRequest, watch, f"b{next(ids)}", token))
            await asyncio.sleep(PAUSE_S)
        watch.cancel()
    return snapshots, restores


async def _operation(call: Any, request: Any, watch: Any, operation: str, token: int) -> Handoff:
    start = time.monotonic_ns()
    asked = asyncio.ensure_future(
        call(request(job_id="a", group=GROUP, operation_id=operation, fencing_token=token, leader_epoch=EPOCH)))
    async with asyncio.timeout(END_LIMIT_S):
        while (message := await watch.read()) is not grpc.aio.EOF:
            ended_ns = time.monotonic_ns()
            for event in message.together or (message,):
                if event.operation.operation_id == operation:
                    await asked
                    if event.operation.result.status != pb.OPERATION_STATUS_COMPLETE:
                        raise BenchmarkFailed(f"operation {operation} failed: {event.operation.result.error}")
                    return Handoff(start, ended_ns)
    raise BenchmarkFailed("the agent ended its stream")
