"""Snapshot, Restore, Lock, Unlock and Kill through gRPC: by calls, and by orders on one stream.

On a fake driver with real processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import grpc
import pytest

from node_under_test import GPU, GPU1, MIB, FakeNode
from ordering_stub import OrderingStub
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.core.outcomes import DriverState, Verb
from snapshot_agent_server.driver.fake import Fault


@pytest.fixture(params=[False, True], ids=["calls", "orders"])
def node(make_node: Callable[..., FakeNode], request: pytest.FixtureRequest) -> FakeNode:
    node = make_node()
    node.by_orders = request.param
    return node


async def test_a_context_is_saved_and_comes_back(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.process(10 * MIB)
        await client.register("a", "g", pid)
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_RUNNING)
        saved = await client.snapshot("a", id="s1")
        assert saved.status == pb.OPERATION_STATUS_COMPLETE
        assert saved.snapshot_device_bytes == saved.storage_bytes == 10 * MIB
        assert node.driver.processes[pid].state is DriverState.CHECKPOINTED
        job = await client.until(lambda: (job := client.jobs["a", "g"]).state == pb.JOB_STATE_SAVED and job)
        assert (job.device_bytes, job.host_bytes) == (0, 10 * MIB)
        assert [(u.accelerator_id, u.device_bytes, u.saved_bytes) for u in job.usage] == [(GPU, 0, 10 * MIB)]
        back = await client.restore("a", id="r1", leave_locked=True)
        assert back.status == pb.OPERATION_STATUS_COMPLETE
        assert back.snapshot_device_bytes == 10 * MIB
        assert node.driver.processes[pid].state is DriverState.LOCKED
        await client.unlock("a")
        assert node.driver.processes[pid].state is DriverState.RUNNING


async def test_a_restore_comes_along_with_the_snapshot_that_it_follows(node: FakeNode) -> None:
    async with node.up() as client:
        first, second = node.process(10 * MIB), node.process(5 * MIB)
        await client.register("a", "g", first)
        await client.register("b", "g", second)
        assert (await client.snapshot("b", id="s0")).status == pb.OPERATION_STATUS_COMPLETE
        accepted = await client.stub.Snapshot(pb.SnapshotRequest(
            job_id="a", group="g", operation_id="s1", then_restore=pb.RestoreRequest(
                job_id="b", group="g", operation_id="r1", after_operation_id="s1", leave_locked=True)))
        assert (accepted.operation_id, accepted.then_operation_id) == ("s1", "r1")
        ended = await client.until(lambda: client.ended.get("r1"))
        assert ended.status == pb.OPERATION_STATUS_COMPLETE
        assert node.driver.processes[first].state is DriverState.CHECKPOINTED
        assert node.driver.processes[second].state is DriverState.LOCKED


async def test_a_refused_restore_that_came_along_is_left_to_a_call_of_its_own(node: FakeNode) -> None:
    async with node.up() as client:
        await client.register("a", "g", node.process(10 * MIB))
        accepted = await client.stub.Snapshot(pb.SnapshotRequest(
            job_id="a", group="g", operation_id="s1", then_restore=pb.RestoreRequest(
                job_id="b", group="no-such-group", operation_id="r1", after_operation_id="s1")))
        assert (accepted.operation_id, accepted.then_operation_id) == ("s1", "")
        assert (await client.until(lambda: client.ended.get("s1"))).status == pb.OPERATION_STATUS_COMPLETE


def fate(pid: int) -> int:
    """The signal that ended a child of ours, 0 while it lives; it stays a zombie."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return 0 if ended is None else ended.si_status


async def test_kill_ends_the_processes_of_one_context(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    async with node.up() as client:
        first, second, other, elsewhere = node.process(), node.process(), node.process(), node.process(gpu=GPU1)
        await client.register("a", "g", first, second)
        await client.register("b", "g", other)
        await client.register("a", "h", elsewhere)
        with caplog.at_level(logging.WARNING):
            killed = await client.kill("a", reason="it cannot be saved")
            await client.until(lambda: ("a", "g") in client.gone)
        assert list(killed.killed_pids) == [first, second]
        assert [fate(pid) for pid in (first, second, other, elsewhere)] == [signal.SIGKILL, signal.SIGKILL, 0, 0]
        assert set(client.jobs) == {("b", "g"), ("a", "h")}
        [line] = [record for record in caplog.records if "killed on request" in record.getMessage()]
        assert "it cannot be saved" in line.getMessage()
        await client.kill("a", "")
        await client.until(lambda: ("a", "h") in client.gone)


@pytest.mark.parametrize("verb", [Verb.LOCK, Verb.CHECKPOINT])
async def test_kill_does_not_wait_for_an_operation_that_hangs(node: FakeNode, verb: Verb) -> None:
    async with node.up() as client:
        pid = node.process()
        await client.register("a", "g", pid)
        node.driver.faults.append(Fault(verb))
        await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s"))
        while (verb, pid) not in node.driver.calls:
            await client.stub.Status(pb.StatusRequest())
        assert list((await client.kill("a")).killed_pids) == [pid]
        ended = await client.until(lambda: client.ended.get("s"))
        assert ended.error.startswith("gone: ")
        assert ("a", "g") in client.gone
        assert fate(pid) == signal.SIGKILL


@pytest.mark.parametrize(("token", "epoch"), [(1, 2), (2, 1), (0, 2), (2, 0)])
async def test_a_stale_kill_kills_nobody(node: FakeNode, token: int, epoch: int) -> None:
    async with node.up() as client:
        pid = node.process()
        await client.register("a", "g", pid)
        await client.lock("a", fencing_token=2, leader_epoch=2)
        with pytest.raises(grpc.aio.AioRpcError, match="nothing was changed") as caught:
            await client.kill("a", fencing_token=token, leader_epoch=epoch)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert fate(pid) == 0
        await client.kill("a", fencing_token=3, leader_epoch=2)
        await client.until(lambda: ("a", "g") in client.gone)
        assert (await client.stub.Status(pb.StatusRequest())).fences[0].fencing_token == 3


async def test_an_order_that_takes_long_holds_no_other_up(make_node: Callable[..., FakeNode]) -> None:
    node = make_node()
    async with node.up() as client:
        slow, quick = node.process(), node.process(gpu=GPU1)
        await client.register("a", "g", slow)
        await client.register("b", "h", quick)
        orders = OrderingStub(client.stub)
        node.driver.faults = [Fault(Verb.LOCK, slow, times=1)]  # hangs until its time is over
        lock = pb.LockRequest(context=pb.ContextRef(job_id="a", group="g"), timeout_ms=2000)
        locking = asyncio.create_task(orders.Lock(lock))
        other = pb.LockRequest(context=pb.ContextRef(job_id="b", group="h"), timeout_ms=2000)
        assert (await orders.Lock(other)).locked_pids == [quick]
        assert not locking.done()
        with pytest.raises(grpc.aio.AioRpcError):
            await locking
        orders.close()


async def test_an_order_of_a_later_contract_is_refused_alone(make_node: Callable[..., FakeNode]) -> None:
    async with make_node().up() as client:
        orders = OrderingStub(client.stub)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await orders.order()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await orders.Unlock(pb.UnlockRequest(context=pb.ContextRef(job_id="a", group="nowhere")))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        orders.close()


async def test_what_was_ordered_goes_on_when_the_stream_breaks(
    make_node: Callable[..., FakeNode], caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    async with node.up() as client:
        pid = node.process()
        await client.register("a", "g", pid)
        orders = OrderingStub(client.stub)
        await orders.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s1"))
        orders.close()
        ended = await client.until(lambda: client.ended.get("s1"))
        assert ended.status == pb.OPERATION_STATUS_COMPLETE
        await client.restore("a", id="r1")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
