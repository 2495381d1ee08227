"""A Lock and a Checkpoint go ahead of their order's record; nothing else does, and nobody hears of them before."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from mock_machine import MockMachine
from node_under_test import Client, following
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

MIB = 1 << 20
COMPLETE = pb.OPERATION_STATUS_COMPLETE


@contextmanager
def stuck_disk(machine: MockMachine) -> Iterator[None]:
    """The agent's record takes nothing, since another holds its lock."""
    with sqlite3.connect(machine.folder / "state" / "agent.db", isolation_level=None) as db:
        db.execute("begin immediate")
        try:
            yield
        finally:
            db.execute("rollback")
    db.close()


async def two_jobs(machine: MockMachine, client: Client) -> tuple[int, int]:
    """a runs, b is saved, by orders with token 1."""
    a, b = await machine.target(), await machine.target()
    await client.register("a", "g", a.pid)
    await client.register("b", "g", b.pid)
    assert (await client.snapshot("b", id="s0", fencing_token=1, leader_epoch=1)).status == COMPLETE
    return a.pid, b.pid


def hand_over(client: Client) -> asyncio.Future[pb.SnapshotResponse]:
    """From a to b, with token 2."""
    then = pb.RestoreRequest(job_id="b", group="g", operation_id="r", fencing_token=2, leader_epoch=1)
    then.after_operation_id = "s"
    request = pb.SnapshotRequest(
        job_id="a", group="g", operation_id="s", fencing_token=2, leader_epoch=1, then_restore=then
    )
    return asyncio.ensure_future(client.stub.Snapshot(request))


async def until_saved(machine: MockMachine, pid: int) -> None:
    async with asyncio.timeout(20.0):
        while await asyncio.to_thread(machine.state_of, pid) != "checkpointed":
            pass


async def seen(client: Client, job: str) -> int:
    status = await client.stub.Status(pb.StatusRequest(per_context=True))
    return next(one.state for one in status.job_statuses if one.job_id == job)


async def test_the_record_of_an_order_holds_up_its_restore_and_its_result(machine: MockMachine) -> None:
    async with machine.served() as client:
        a, b = await two_jobs(machine, client)
        with stuck_disk(machine):
            asked = hand_over(client)
            await until_saved(machine, a)
            assert await seen(client, "a") == pb.JOB_STATE_TRANSITIONING
            assert machine.state_of(b) == "checkpointed"
            assert not asked.done()
            assert not {"s", "r"} & set(client.ended)
        assert (await asked).then_operation_id == "r"
        await client.until(lambda: {"s", "r"} <= set(client.ended))
        assert {client.ended[id].status for id in ("s", "r")} == {COMPLETE}
        assert (machine.state_of(a), machine.state_of(b)) == ("checkpointed", "running")


async def test_another_groups_result_does_not_wait_for_that_record(machine: MockMachine) -> None:
    async with machine.served() as client:
        a, _ = await two_jobs(machine, client)
        c = await machine.target(device=1)
        await client.register("c", "h", c.pid)
        machine.inject("hang", "op=checkpoint", f"pid={c.pid}")
        await client.stub.Snapshot(
            pb.SnapshotRequest(job_id="c", group="h", operation_id="sc", fencing_token=1, leader_epoch=1)
        )
        with stuck_disk(machine):
            asked = hand_over(client)
            await until_saved(machine, a)
            machine.clear()
            assert (await client.until(lambda: client.ended.get("sc"))).status == COMPLETE
            assert not asked.done()
            assert "s" not in client.ended
        await client.until(lambda: {"s", "r"} <= set(client.ended))


async def test_an_order_that_is_lost_with_the_agent_can_be_given_again(machine: MockMachine) -> None:
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            a, b = await two_jobs(machine, client)
            with stuck_disk(machine):
                asked = hand_over(client)
                await until_saved(machine, a)
                await agent.kill()
        await asyncio.wait((asked,))
        assert asked.exception() is not None
    async with machine.served() as client:
        assert client.jobs["a", "g"].state == pb.JOB_STATE_SAVED
        fences = client.events[0].snapshot.fences
        assert [fence.fencing_token for fence in fences if fence.group == "g"] == [1], "nobody was told of token 2"
        await hand_over(client)
        await client.until(lambda: {"s", "r"} <= set(client.ended))
        assert {client.ended[id].status for id in ("s", "r")} == {COMPLETE}
        assert (machine.state_of(a), machine.state_of(b)) == ("checkpointed", "running")
