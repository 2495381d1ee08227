"""A snapshot agent that knows the contract below number 100 and nothing else; run as a process of its own.

It behaves as llm-d's does: operations take a while and are to be asked for, a failed one leaves its job FAULTED, an
unknown one is NOT_FOUND, accelerators are not told, and all it knows is in memory: started anew, it shows jobs as IDLE,
and can neither save nor restore one before it has found its processes.

    python llmd_agent.py HOST:PORT JOB=STATE ...

Commands come as JSON lines on stdin, what happens goes out as JSON lines on stdout.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import uuid
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc

assert not hasattr(pb, "WatchRequest"), "these are not the stubs of the old contract"

Operation = pb.GetOperationResponse


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Agent(pb_grpc.SnapshotAgentServiceServicer):
    """Its jobs by name, and its operations by id."""

    def __init__(self, jobs: dict[str, int]) -> None:
        self.jobs = jobs
        self.operations: dict[str, Operation] = {}
        self.asked: dict[str, list[float]] = {}
        self.takes_s = 0.05
        self.fails: list[str] = []
        self.is_mute = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.numbers = itertools.count(1)

    def set(self, job: str, state: str) -> None:
        """A job's processes start to use the device, or whatever else."""
        self.jobs[job] = pb.JobState.Value(f"JOB_STATE_{state}")

    async def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotResponse:
        await self._enter("Snapshot")
        return pb.SnapshotResponse(operation_id=await self._start("snapshot", request, pb.JOB_STATE_SAVED, context))

    async def Restore(self, request: pb.RestoreRequest, context: Any) -> pb.RestoreResponse:
        await self._enter("Restore")
        if self.jobs.get(request.job_id) == pb.JOB_STATE_RUNNING:
            return pb.RestoreResponse(operation_id="already-running")
        return pb.RestoreResponse(operation_id=await self._start("restore", request, pb.JOB_STATE_RUNNING, context))

    async def GetOperation(self, request: pb.GetOperationRequest, context: Any) -> Operation:
        await self._enter("GetOperation")
        if request.operation_id not in self.operations:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"operation {request.operation_id} not found")
        self.asked[request.operation_id].append(asyncio.get_running_loop().time())
        return self.operations[request.operation_id]

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        await self._enter("Status")
        assert not request.ListFields(), request
        return pb.StatusResponse(job_statuses=[pb.JobStatus(job_id=j, state=s) for j, s in self.jobs.items()])

    async def _enter(self, method: str) -> None:
        if self.is_mute:
            await asyncio.Event().wait()

    async def _start(self, kind: str, request: Any, done: int, context: Any) -> str:
        state = self.jobs.get(request.job_id, pb.JOB_STATE_IDLE)
        if state == pb.JOB_STATE_TRANSITIONING:
            await context.abort(grpc.StatusCode.ABORTED, f"job {request.job_id} is already transitioning")
        if state == pb.JOB_STATE_FAULTED:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"job {request.job_id} is in FAULTED state")
        name = str(uuid.uuid4())
        self.operations[name] = Operation(status=pb.OPERATION_STATUS_PENDING)
        self.asked[name] = []
        self.jobs[request.job_id] = pb.JOB_STATE_TRANSITIONING
        tell("began", kind=kind, job=request.job_id)
        is_idle = state == pb.JOB_STATE_IDLE
        task = asyncio.create_task(self._run(name, kind, request.job_id, done, is_idle))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return name

    async def _run(self, name: str, kind: str, job: str, done: int, is_idle: bool) -> None:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(self.takes_s)
        took_ms = round((asyncio.get_running_loop().time() - started) * 1000)
        if kind in self.fails or is_idle:  # of an idle job it knows no processes
            self.fails = [other for other in self.fails if other != kind]
            self.jobs[job] = pb.JOB_STATE_FAULTED
            self.operations[name] = Operation(
                status=pb.OPERATION_STATUS_FAILED, error=f"failed to {kind} job {job}", elapsed_ms=took_ms)
        else:
            self.jobs[job] = done
            self.operations[name] = Operation(status=pb.OPERATION_STATUS_COMPLETE, elapsed_ms=took_ms)
        running = [other for other, state in self.jobs.items() if state == pb.JOB_STATE_RUNNING]
        asked_s = [at_s - started for at_s in self.asked[name]]
        tell("ended", kind=kind, job=job, ok=self.jobs[job] == done, running=running, asked_s=asked_s)


async def obey(agent: Agent) -> None:
    """Take commands until stdin ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        match json.loads(line):
            case ["set", job, state]:
                agent.set(job, state)
            case ["fail", kind]:
                agent.fails.append(kind)
            case ["take", seconds]:
                agent.takes_s = seconds
            case ["mute", is_mute]:
                agent.is_mute = is_mute
            case other:
                raise ValueError(other)
        tell("obeyed")


async def main(address: str, *jobs: str) -> None:
    agent = Agent({})
    for job in jobs:
        agent.set(*job.split("="))
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_SnapshotAgentServiceServicer_to_server(agent, server)
    port = server.add_insecure_port(address)
    await server.start()
    tell("listening", port=port)
    await obey(agent)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
