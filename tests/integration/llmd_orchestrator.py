"""An orchestrator that knows the contract below number 100 and nothing else; run as a process of its own.

One lock per group, first come first served, and no sessions, tokens or slices: a caller that goes away while it waits
is out of the queue, and one that goes away while it holds keeps the group.

    python llmd_orchestrator.py HOST:PORT GROUP...

Says {"port": N} on stdout, then [METHOD, JOB, GROUP] for each call, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from typing import Any

import grpc

from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

assert not hasattr(pb, "Lease"), "these are not the stubs of the old contract"


class Group:
    """Who holds it, who waits."""

    def __init__(self) -> None:
        self.holder = ""
        self.waiters: deque[tuple[str, asyncio.Future[None]]] = deque()

    def serve_next(self) -> None:
        while not self.holder and self.waiters:
            job, granted = self.waiters.popleft()
            if not granted.cancelled():
                self.holder = job
                granted.set_result(None)


class Orchestrator(pb_grpc.TimeSliceOrchestratorServiceServicer):
    """Its groups by name."""

    def __init__(self, groups: list[str]) -> None:
        self.groups = {name: Group() for name in groups}

    async def Acquire(self, request: pb.AcquireRequest, context: Any) -> pb.AcquireResponse:
        group = await self._enter("Acquire", request, context)
        began = asyncio.get_running_loop().time()
        if group.holder != request.job_id:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            group.waiters.append((request.job_id, granted))
            group.serve_next()
            await granted
        waited_ms = round((asyncio.get_running_loop().time() - began) * 1000)
        return pb.AcquireResponse(success=True, waited_ms=waited_ms, context_restored=True)

    async def Yield(self, request: pb.YieldRequest, context: Any) -> pb.YieldResponse:
        group = await self._enter("Yield", request, context)
        if group.holder != request.job_id:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{request.job_id} does not hold the group")
        group.holder = ""
        pending = sum(not granted.cancelled() for _, granted in group.waiters)
        group.serve_next()
        return pb.YieldResponse(success=True, pending_waiters=pending, snapshot_deferred=not pending)

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        return pb.ListGroupsResponse(group_ids=sorted(self.groups))

    async def GetGroupStatus(self, request: pb.GetGroupStatusRequest, context: Any) -> pb.GetGroupStatusResponse:
        group = await self._enter("GetGroupStatus", request, context)
        state = pb.GroupStatus.STATE_LOCKED if group.holder else pb.GroupStatus.STATE_IDLE
        depth = sum(not granted.cancelled() for _, granted in group.waiters)
        status = pb.GroupStatus(
            group_id=request.group_id, group_state=state, locking_job=group.holder, waiter_queue_depth=depth)
        return pb.GetGroupStatusResponse(group=status)

    async def _enter(self, method: str, request: Any, context: Any) -> Group:
        fields = {field.name for field, _ in request.ListFields()}
        assert fields <= {"job_id", "group_id"}, fields
        print(json.dumps([method, getattr(request, "job_id", ""), request.group_id]), flush=True)
        if request.group_id not in self.groups:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"group {request.group_id} not found")
        return self.groups[request.group_id]


async def main(address: str, *groups: str) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_TimeSliceOrchestratorServiceServicer_to_server(Orchestrator(list(groups)), server)
    port = server.add_insecure_port(address)
    await server.start()
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
