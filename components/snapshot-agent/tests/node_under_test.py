"""An agent in this process, on a fake driver and real target processes, and a client beside it."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from fake_proc import FakeProc
from ordering_stub import OrderingStub
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc
from snapshot_agent_server.api.service import SnapshotAgentService
from snapshot_agent_server.core.events import PodsChanged
from snapshot_agent_server.core.ids import AcceleratorId, GroupId, JobId, PodUid
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.settings import CoreSettings
from snapshot_agent_server.driver.fake import FakeDriver
from snapshot_agent_server.shell import AgentShell
from snapshot_agent_server.store.sqlite import Store

MIB = 1 << 20
GPU = AcceleratorId("GPU-0")
GPU1 = AcceleratorId("GPU-1")
CONTAINER = 64 * "c"


class Client:
    """The agent's stub, and what its Watch has said so far."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = pb_grpc.SnapshotAgentServiceStub(channel)
        self.events: list[pb.AgentEvent] = []
        self.jobs: dict[tuple[str, str], pb.JobStatus] = {}
        self.accelerators: dict[str, pb.AcceleratorStatus] = {}
        self.ended: dict[str, pb.GetOperationResponse] = {}
        self.gone: set[tuple[str, str]] = set()
        self._changed = asyncio.Condition()

    async def follow(self, epoch: int = 0) -> None:
        async for event in self.stub.Watch(pb.WatchRequest(leader_epoch=epoch)):
            self._take(event)
            async with self._changed:
                self._changed.notify_all()

    def _take(self, event: pb.AgentEvent) -> None:
        self.events.append(event)
        match event.WhichOneof("event"):
            case "snapshot":
                self.jobs = {(job.job_id, job.group): job for job in event.snapshot.job_statuses}
                self.accelerators = {a.id: a for a in event.snapshot.accelerator_statuses}
            case "job":
                self.jobs[event.job.job_id, event.job.group] = event.job
            case "gone":
                self.jobs.pop((event.gone.job_id, event.gone.group), None)
                self.gone.add((event.gone.job_id, event.gone.group))
            case "operation":
                self.ended[event.operation.operation_id] = event.operation.result
            case "accelerator":
                self.accelerators[event.accelerator.id] = event.accelerator

    async def until(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """Wait for a condition on what Watch has said; looked at after every event."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s; the last events: {self.events[-8:]}") from None
        return condition()

    async def register(self, job: str, group: str, *pids: int) -> Any:
        """Register and close the stream. Raises: grpc.aio.AioRpcError if it was refused."""
        return await self.register_workload(pb.RegisterWorkload(job_id=job, group=group, pids=pids))

    async def register_workload(self, workload: pb.RegisterWorkload) -> Any:
        """As `register`, with whatever a registration may say."""
        call = self.stub.WorkloadChannel()
        await call.write(pb.WorkloadMessage(register=workload))
        await call.done_writing()
        async for _ in call:
            pass
        assert await call.code() is grpc.StatusCode.OK
        return call

    async def snapshot(self, job: str, group: str = "g", *, id: str, **fields: Any) -> pb.GetOperationResponse:
        await self.stub.Snapshot(pb.SnapshotRequest(job_id=job, group=group, operation_id=id, **fields))
        return await self.until(lambda: self.ended.get(id))

    async def restore(self, job: str, group: str = "g", *, id: str, **fields: Any) -> pb.GetOperationResponse:
        await self.stub.Restore(pb.RestoreRequest(job_id=job, group=group, operation_id=id, **fields))
        return await self.until(lambda: self.ended.get(id))

    async def lock(self, job: str, group: str = "g", timeout_ms: int = 5000, **fields: Any) -> pb.LockResponse:
        ref = pb.ContextRef(job_id=job, group=group)
        return await self.stub.Lock(pb.LockRequest(context=ref, timeout_ms=timeout_ms, **fields))

    async def unlock(self, job: str, group: str = "g", **fields: Any) -> pb.UnlockResponse:
        ref = pb.ContextRef(job_id=job, group=group)
        return await self.stub.Unlock(pb.UnlockRequest(context=ref, **fields))

    async def kill(self, job: str, group: str = "g", **fields: Any) -> pb.KillResponse:
        ref = pb.ContextRef(job_id=job, group=group)
        return await self.stub.Kill(pb.KillRequest(context=ref, **fields))


def connected(address: str) -> grpc.aio.Channel:
    """A channel that knows nothing of earlier ones: after a restart it does not wait out their backoff."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


@asynccontextmanager
async def following(address: str, epoch: int = 0, *, by_orders: bool = False) -> AsyncIterator[Client]:
    """A client whose Watch has delivered its first event; `by_orders`: it gives orders on one stream."""
    async with connected(address) as channel:
        client = Client(channel)
        if by_orders:
            client.stub = OrderingStub(client.stub)
        watch = asyncio.create_task(client.follow(epoch), name="watch")
        try:
            await client.until(lambda: client.events)
            yield client
        finally:
            watch.cancel()
            if by_orders:
                client.stub.close()
            await asyncio.wait((watch,))
            if not watch.cancelled():
                watch.exception()  # a stream that the agent ended: the test has seen what it wanted


@asynccontextmanager
async def serving(shell: AgentShell, address: str) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_SnapshotAgentServiceServicer_to_server(SnapshotAgentService(shell), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    running = asyncio.create_task(shell.run(), name="agent")
    starting = asyncio.create_task(shell.started())
    await asyncio.wait((running, starting), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.result()


class Targets:
    """Processes for the fake driver: real ones, so that /proc and pidfds are real too."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "3600"])
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class FakeNode:
    """The agent's shell and API on a FakeDriver. Restart: leave `up()` and enter it again."""

    def __init__(self, folder: Path, groups: Mapping[str, Sequence[str]], **settings: Any) -> None:
        self.address = f"unix:{folder}/a.sock"
        self.folder = folder
        self.settings = CoreSettings(
            groups={GroupId(g): tuple(AcceleratorId(a) for a in members) for g, members in groups.items()}, **settings
        )
        self.driver = FakeDriver({GPU: 64 * MIB, GPU1: 64 * MIB})
        self.proc = FakeProc(folder.parent / f"{folder.name}-proc")
        self.pods: dict[str, Pod] = {}
        self.targets = Targets()
        self.incarnations = 0
        self.sample_interval_s = 0.02
        self.by_orders = False
        self.shell: AgentShell

    def process(self, size: int | None = 10 * MIB, gpu: AcceleratorId = GPU) -> int:
        """A process; with device memory if `size` is given."""
        pid = self.targets.start().pid
        if size is not None:
            self.driver.add(pid, {gpu: size})
        return pid

    def pod(self, job: str, group: str | None = "g") -> str:
        """A pod of a job comes, and the cluster tells."""
        uid = str(uuid.uuid4())
        pod_group = None if group is None else GroupId(group)
        name, containers = f"default/{job}-{len(self.pods)}", frozenset({CONTAINER})
        self.pods[uid] = Pod(PodUid(uid), name, JobId(job), pod_group, containers)
        self.tell_pods()
        return uid

    def tell_pods(self) -> None:
        self.shell.post(PodsChanged(tuple(self.pods.values())))

    def run_in(
        self,
        pod: str,
        size: int | None = 10 * MIB,
        gpu: AcceleratorId = GPU,
        inner: int | None = None,
        container: str = CONTAINER,
    ) -> int:
        """A process in a pod, where its pid is `inner`; with device memory if `size` is given."""
        pid = self.process(size, gpu)
        self.proc.put(pid, [f"0::/kubepods/besteffort/pod{pod}/{container}"], inner)
        return pid

    @asynccontextmanager
    async def up(self, epoch: int = 0) -> AsyncIterator[Client]:
        self.incarnations += 1
        store = Store(self.folder)
        try:
            self.shell = AgentShell(
                self.settings,
                self.driver,
                store,
                incarnation=f"i{self.incarnations}",
                sample_interval_s=self.sample_interval_s,
                processes=self.proc.folder,
            )
            follower = following(self.address, epoch, by_orders=self.by_orders)
            async with serving(self.shell, self.address), follower as client:
                yield client
        finally:
            store.close()
