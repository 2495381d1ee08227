"""Snapshot, Restore, Lock and Unlock through gRPC, on a fake driver with real processes."""

from __future__ import annotations

from node_under_test import GPU, MIB, FakeNode
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.core.outcomes import DriverState


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
