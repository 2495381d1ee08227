"""Rows of docs/design/failures.md, with real processes and faults injected into the mock."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import time

import grpc
import pytest

from mock_machine import MockMachine
from node_under_test import Client, connected, following
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

MIB = 1 << 20
COMPLETE, FAILED = pb.OPERATION_STATUS_COMPLETE, pb.OPERATION_STATUS_FAILED


async def test_a_context_is_saved_and_comes_back_with_its_contents(machine: MockMachine) -> None:
    target = await machine.target(8 * MIB)
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        saved = await client.snapshot("a", id="s")
        assert (saved.status, saved.snapshot_device_bytes) == (COMPLETE, 8 * MIB)
        gpu = machine.uuids[0]
        await client.until(lambda: client.accelerators[gpu].memory_used_bytes == 0)
        back = await client.restore("a", id="r", leave_locked=True)
        assert back.status == COMPLETE
        await client.unlock("a")
        assert await target.tell("check") == "same"


async def test_row_1_a_killed_process_is_told_without_polling(machine: MockMachine) -> None:
    target = await machine.target()
    async with machine.served("--sample-interval-ms", "3600000") as client:
        await client.register("a", "g", target.pid)
        await client.until(lambda: ("a", "g") in client.jobs)
        await target.kill()
        await client.until(lambda: ("a", "g") in client.gone, timeout_s=2.0)


async def test_row_7_nothing_to_save_is_no_fault(machine: MockMachine) -> None:
    idle = await machine.target(None)
    async with machine.served() as client:
        await client.register("idle", "g", idle.pid)
        job = await client.until(lambda: client.jobs.get(("idle", "g")))
        assert (job.state, list(job.pids)) == (pb.JOB_STATE_IDLE, [idle.pid])
        for job_id in ("idle", "unheard-of"):
            saved = await client.snapshot(job_id, id=f"s-{job_id}")
            assert (saved.status, saved.snapshot_device_bytes, saved.error) == (COMPLETE, 0, "")


async def test_row_9_a_lock_that_hangs_is_rolled_back(machine: MockMachine) -> None:
    first, second = await machine.target(), await machine.target()
    machine.inject("hang", "op=lock", f"pid={second.pid}")
    async with machine.served() as client:
        await client.register("a", "g", first.pid, second.pid)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.lock("a", timeout_ms=300)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        machine.clear()
        assert await first.tell("check") == "same"
        assert await second.tell("check") == "same"
        assert sorted((await client.lock("a")).locked_pids) == sorted([first.pid, second.pid])


@pytest.mark.parametrize("when", ["before", "after"])
async def test_row_9_a_checkpoint_that_hangs_is_settled_by_what_the_driver_says(
    machine: MockMachine, when: str
) -> None:
    target = await machine.target()
    machine.inject("hang", "op=checkpoint", *(["when=after"] if when == "after" else []))
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        first = await client.snapshot("a", id="s", timeout_ms=500)
        if first.indeterminate:
            assert not first.rolled_back
            assert client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING
            machine.clear()
        await client.until(lambda: not client.ended["s"].indeterminate)
        last = client.ended["s"]
        assert last.rolled_back or last.status == COMPLETE
        machine.clear()
        if last.status == COMPLETE:
            await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_SAVED)
            assert (await client.restore("a", id="r")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_9_a_locked_context_whose_checkpoint_hangs_is_indeterminate(machine: MockMachine) -> None:
    target = await machine.target()
    machine.inject("hang", "op=checkpoint")
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        await client.lock("a")
        first = await client.snapshot("a", id="s", timeout_ms=500)
        assert (first.status, first.indeterminate, first.rolled_back) == (FAILED, True, False)
        assert client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING
        machine.clear()
        await client.until(lambda: client.ended["s"].status == COMPLETE)
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_SAVED)
        assert (await client.restore("a", id="r")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_9_a_stopped_process_is_found_before_the_lock(machine: MockMachine) -> None:
    target = await machine.target()
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        target.stop()
        try:
            with pytest.raises(grpc.aio.AioRpcError, match=f"process {target.pid} is stopped") as caught:
                await client.lock("a", timeout_ms=60_000)
            assert caught.value.code() is grpc.StatusCode.ABORTED
        finally:
            target.cont()
        assert (await client.snapshot("a", id="s")).status == COMPLETE


@pytest.mark.parametrize("operation", ["lock", "checkpoint", "get-state"])
async def test_row_10_a_flake_is_retried_inside_the_operation(machine: MockMachine, operation: str) -> None:
    target = await machine.target()
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        machine.inject("fail", f"op={operation}", "code=3", "times=2")
        assert (await client.snapshot("a", id="s")).status == COMPLETE
        machine.inject("fail", "op=restore,unlock", "code=3", "times=2")
        assert (await client.restore("a", id="r")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_11_all_are_back_when_the_second_of_four_cannot_be_saved(machine: MockMachine) -> None:
    targets = [await machine.target(4 * MIB) for _ in range(4)]
    machine.inject("fail", "op=checkpoint", "nth=2", "code=999")
    async with machine.served() as client:
        await client.register("a", "g", *(target.pid for target in targets))
        saved = await client.snapshot("a", id="s")
        assert (saved.status, saved.rolled_back, saved.indeterminate) == (FAILED, True, False)
        assert "checkpoint of process" in saved.error
        job = await client.until(lambda: (job := client.jobs["a", "g"]).state == pb.JOB_STATE_RUNNING and job)
        assert not job.locked
        assert [await target.tell("check") for target in targets] == ["same"] * 4


@pytest.mark.parametrize("operation", ["lock", "checkpoint"])
async def test_row_11_a_job_is_killed_also_while_the_driver_hangs(machine: MockMachine, operation: str) -> None:
    target, other = await machine.target(8 * MIB), await machine.target(8 * MIB)
    machine.inject("hang", f"op={operation}", f"pid={target.pid}")
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        await client.register("b", "g", other.pid)
        await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s", timeout_ms=60_000))
        if operation == "checkpoint":
            await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING)
        assert list((await client.kill("a", reason="it cannot be saved")).killed_pids) == [target.pid]
        assert await target.ended() == -signal.SIGKILL
        ended = await client.until(lambda: client.ended.get("s"), timeout_s=5.0)
        assert ended.error.startswith("gone: ")
        assert ("a", "g") in client.gone
        gpu = machine.uuids[0]
        await client.until(lambda: client.accelerators[gpu].memory_used_bytes == 8 * MIB)
        assert await other.tell("check") == "same"
        assert (await client.snapshot("b", id="b")).status == COMPLETE


async def test_row_12_a_restore_without_room_is_not_tried(machine: MockMachine) -> None:
    target, stranger = await machine.target(40 * MIB), await machine.target(None)
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        assert (await client.snapshot("a", id="s")).status == COMPLETE
        assert await stranger.tell("alloc", 0, 30 * MIB) == "ok"
        back = await client.restore("a", id="r")
        assert (back.status, back.rolled_back) == (FAILED, True)
        assert f"process {stranger.pid} of no known job" in back.error
        assert "not tried" in back.error
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_SAVED)
        gpu = machine.uuids[0]
        await client.until(lambda: list(client.accelerators[gpu].unmanaged_pids) == [stranger.pid])
        await stranger.kill()
        assert (await client.restore("a", id="r2")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_12_a_margin_stays_free(machine: MockMachine) -> None:
    target = await machine.target(40 * MIB)
    async with machine.served("--restore-margin-mib", "30") as client:
        await client.register("a", "g", target.pid)
        await client.snapshot("a", id="s")
        back = await client.restore("a", id="r")
        assert (back.status, back.rolled_back) == (FAILED, True)
        assert "needed 70.0 MiB" in back.error


async def test_row_12_out_of_memory_all_the_same_is_failed_not_saved(machine: MockMachine) -> None:
    target = await machine.target()
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        await client.snapshot("a", id="s")
        machine.inject("restore-oom")
        back = await client.restore("a", id="r")
        assert (back.status, back.rolled_back) == (FAILED, False)
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_FAULTED)


async def test_row_13_a_failed_process_faults_its_job_alone(machine: MockMachine) -> None:
    bad, good = await machine.target(), await machine.target()
    machine.inject("fail", "op=checkpoint", f"pid={bad.pid}", "code=999", "leaves-failed")
    async with machine.served() as client:
        await client.register("bad", "g", bad.pid)
        await client.register("good", "g", good.pid)
        assert (await client.snapshot("bad", id="s1")).status == FAILED
        job = await client.until(lambda: (job := client.jobs["bad", "g"]).state == pb.JOB_STATE_FAULTED and job)
        assert "start it again" in job.reason
        assert (await client.snapshot("good", id="s2")).status == COMPLETE
        assert (await client.restore("good", id="r2")).status == COMPLETE
        assert await good.tell("check") == "same"
        await bad.kill()
        await client.until(lambda: ("bad", "g") in client.gone)


async def test_row_14_a_process_that_ends_in_the_middle_is_gone_and_no_fault(machine: MockMachine) -> None:
    target = await machine.target()
    machine.inject("slow", "checkpoint=30")
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s"))
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING)
        await target.kill()
        result = await client.until(lambda: client.ended.get("s"))
        assert (result.status, result.indeterminate) == (FAILED, False)
        assert result.error.startswith("gone: ")
        assert ("a", "g") in client.gone, "the end of the context comes before the end of its operation"
        assert not (await client.stub.Status(pb.StatusRequest())).job_statuses


async def test_row_15_an_operation_goes_on_after_the_agent_was_killed(machine: MockMachine) -> None:
    targets = [await machine.target(4 * MIB) for _ in range(3)]
    machine.inject("slow", "checkpoint=0.4")
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await client.register("a", "g", *(target.pid for target in targets))
            await client.stub.Snapshot(
                pb.SnapshotRequest(job_id="a", group="g", operation_id="s", fencing_token=4, leader_epoch=2)
            )
            await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING)
            await agent.kill()
    async with machine.served() as client:
        result = await finished(client, "s")
        assert result.status == COMPLETE
        assert result.snapshot_device_bytes == 12 * MIB
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_SAVED)
        fence = next(f for f in (await client.stub.Status(pb.StatusRequest())).fences if f.group == "g")
        assert (fence.fencing_token, fence.leader_epoch) == (4, 2)
        again = pb.SnapshotRequest(job_id="a", group="g", operation_id="s", fencing_token=4, leader_epoch=2)
        assert (await client.stub.Snapshot(again)).operation_id == "s"
        back = await client.restore("a", id="r", fencing_token=5, leader_epoch=2)
        assert back.status == COMPLETE
        assert [await target.tell("check") for target in targets] == ["same"] * 3


async def test_row_15_a_restore_goes_on_after_the_agent_was_killed(machine: MockMachine) -> None:
    target = await machine.target()
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await client.register("a", "g", target.pid)
            await client.snapshot("a", id="s")
            machine.inject("slow", "restore=0.6")
            await client.stub.Restore(pb.RestoreRequest(job_id="a", group="g", operation_id="r"))
            await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING)
            await agent.kill()
    async with machine.served() as client:
        assert (await finished(client, "r")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_15_what_was_past_its_deadline_is_rolled_back(machine: MockMachine) -> None:
    first, second = await machine.target(4 * MIB), await machine.target(4 * MIB)
    machine.inject("slow", "checkpoint=0.3")
    machine.inject("hang", "op=checkpoint", f"pid={second.pid}", "for=1.5")
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await client.register("a", "g", first.pid, second.pid)
            await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s", timeout_ms=1000))
            await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING)
            await agent.kill()
    await asyncio.sleep(1.0)  # the deadline itself passes; nothing is waited for
    async with machine.served() as client:
        result = await finished(client, "s")
        assert result.rolled_back or result.status == COMPLETE
        if result.status == COMPLETE:
            assert (await client.restore("a", id="r")).status == COMPLETE
        assert [await target.tell("check") for target in (first, second)] == ["same", "same"]


async def test_row_21_a_stranger_with_the_pid_is_left_alone(machine: MockMachine) -> None:
    target = await machine.target()
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await client.register("a", "g", target.pid)
            assert (await client.snapshot("a", id="s")).status == COMPLETE
            assert await agent.terminate() == 0
    # As if the process on record had ended, and this one had got its pid.
    with contextlib.closing(sqlite3.connect(machine.folder / "state/agent.db")) as db:
        db.execute("update processes set start_time = start_time - 1")
        db.commit()
    async with machine.served() as client:
        back = await client.restore("a", id="r")
        assert back.status == FAILED
        assert back.error.startswith("gone: ")
        assert machine.state_of(target.pid) == "checkpointed"


async def test_row_22_two_roles_of_a_job_are_saved_apart(machine: MockMachine) -> None:
    sampler, trainer = await machine.target(device=0), await machine.target(device=1)
    async with machine.served() as client:
        await client.register("a", "g", sampler.pid)
        await client.register("a", "h", trainer.pid)
        assert (await client.snapshot("a", "g", id="s")).status == COMPLETE
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_SAVED)
        assert client.jobs["a", "h"].state == pb.JOB_STATE_RUNNING
        assert await trainer.tell("check") == "same"
        [merged] = (await client.stub.Status(pb.StatusRequest())).job_statuses
        assert merged.state == pb.JOB_STATE_SAVED
        assert len((await client.stub.Status(pb.StatusRequest(per_context=True))).job_statuses) == 2


async def test_row_22_a_process_in_two_groups_is_refused(machine: MockMachine) -> None:
    target, wide = await machine.target(), await machine.target(device=0)
    assert await wide.tell("alloc", 1, MIB) == "ok"
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        with pytest.raises(grpc.aio.AioRpcError, match="one context") as caught:
            await client.register("a", "h", target.pid)
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        with pytest.raises(grpc.aio.AioRpcError, match="one group") as caught:
            await client.register("b", "g", wide.pid)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await target.tell("alloc", 1, MIB) == "ok"
        job = await client.until(lambda: (job := client.jobs["a", "g"]).state == pb.JOB_STATE_FAULTED and job)
        assert "one group" in job.reason
        saved = await client.snapshot("a", id="s")
        assert (saved.status, saved.rolled_back) == (FAILED, True)
        assert "one group" in saved.error


@pytest.mark.parametrize("fault", ["no-memory-figures", "hide-process"])
async def test_row_24_the_driver_decides_where_nvml_is_silent(machine: MockMachine, fault: str) -> None:
    machine.inject(fault)
    target = await machine.target(8 * MIB)
    async with machine.served() as client:
        await client.register("a", "g", target.pid)
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_RUNNING)
        saved = await client.snapshot("a", id="s")
        assert (saved.status, saved.snapshot_device_bytes) == (COMPLETE, 8 * MIB)
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_SAVED)
        assert (await client.restore("a", id="r")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_33_sigterm_finishes_what_is_under_way(machine: MockMachine) -> None:
    target = await machine.target()
    machine.inject("slow", "checkpoint=0.5")
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await client.register("a", "g", target.pid)
            await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s"))
            await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_TRANSITIONING)
            assert await agent.terminate() == 0
            assert client.ended["s"].status == COMPLETE


async def test_row_38_a_saved_job_is_saved_after_a_restart_and_never_idle(machine: MockMachine) -> None:
    target = await machine.target()
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await client.register("a", "g", target.pid)
            await client.snapshot("a", id="s")
            await agent.kill()
    async with machine.served() as client:
        first = client.events[0].snapshot
        [job] = first.job_statuses
        assert (job.job_id, job.group, job.state) == ("a", "g", pb.JOB_STATE_SAVED)
        assert job.host_bytes == 8 * MIB
        states = {e.job.state for e in client.events if e.WhichOneof("event") == "job"}
        assert pb.JOB_STATE_IDLE not in states
        assert (await client.restore("a", id="r")).status == COMPLETE
        assert await target.tell("check") == "same"


async def test_row_40_a_state_query_that_hangs_delays_nobody_else(machine: MockMachine) -> None:
    stuck, good = await machine.target(device=0), await machine.target(device=1)
    machine.inject("hang", "op=get-state", f"pid={stuck.pid}")
    async with machine.served() as client:
        registering = asyncio.create_task(client.register("stuck", "g", stuck.pid))
        await client.register("good", "h", good.pid)
        saving = asyncio.create_task(client.snapshot("stuck", id="s1", timeout_ms=1500))
        assert (await client.snapshot("good", "h", id="s2")).status == COMPLETE
        assert (await client.restore("good", "h", id="r2")).status == COMPLETE
        await client.stub.Status(pb.StatusRequest(), timeout=1.0)
        await registering
        machine.clear()
        result = await saving
        await client.until(lambda: not client.ended["s1"].indeterminate)
        assert result.status in (COMPLETE, FAILED)


async def test_row_44_an_intruder_is_locked_and_told(machine: MockMachine) -> None:
    holder = await machine.target()
    async with machine.served() as client:
        await client.register("a", "g", holder.pid)
        await client.unlock("a", fencing_token=1, leader_epoch=1)
        delays = []
        for name in ("b", "c", "d"):
            intruder = await machine.target(None)
            await client.register(name, "g", intruder.pid)
            assert await intruder.tell("alloc", 0, MIB) == "ok"
            start = time.monotonic()
            job = await client.until(lambda name=name: (job := client.jobs[name, "g"]).locked and job)
            delays.append(time.monotonic() - start)
            assert job.state == pb.JOB_STATE_RUNNING
            assert "without the lease" in job.reason
        assert min(delays) < 0.5, "on a machine with time for it"
        # Not by a clock alone: its next call blocks, the holder's does not.
        intruder.give("grow", MIB)
        assert await holder.tell("check") == "same"
        with pytest.raises(TimeoutError):
            await intruder.hear(timeout_s=0.3)
        await client.lock("a", fencing_token=2, leader_epoch=1)
        await client.unlock("d", fencing_token=2, leader_epoch=1)
        assert await intruder.hear() == "ok"
        assert machine.state_of(holder.pid) == "locked"


async def finished(client: Client, operation: str) -> pb.GetOperationResponse:
    """The result of an operation that may have ended before the client began to watch."""

    async def ask() -> pb.GetOperationResponse:
        return await client.stub.GetOperation(pb.GetOperationRequest(operation_id=operation))

    result = await ask()
    if result.status == pb.OPERATION_STATUS_PENDING or result.indeterminate:
        await client.until(lambda: operation in client.ended and not client.ended[operation].indeterminate)
        result = await ask()
    return result


async def test_row_15_killed_anywhere_in_a_switch_it_finishes_it(machine: MockMachine) -> None:
    """Two jobs take turns; in each switch the agent is killed, a little later every time, and started again."""
    jobs = {"a": [await machine.target() for _ in range(2)], "b": [await machine.target(None) for _ in range(2)]}
    async with machine.served() as client:
        for job, targets in jobs.items():
            await client.register(job, "g", *(target.pid for target in targets))
        await client.snapshot("a", id="s", fencing_token=1, leader_epoch=1)
        await client.unlock("b", fencing_token=1, leader_epoch=1)
    for target in jobs["b"]:
        assert await target.tell("alloc", 0, 8 * MIB) == "ok"
    holder, other = "b", "a"
    for turn in range(2, 8):
        fence = {"fencing_token": turn, "leader_epoch": 1}
        save = pb.SnapshotRequest(job_id=holder, group="g", operation_id=f"s{turn}", **fence)
        load = pb.RestoreRequest(
            job_id=other, group="g", operation_id=f"r{turn}", after_operation_id=f"s{turn}", leave_locked=True, **fence
        )
        async with machine.agent("--workers", "1") as agent, connected(machine.address) as channel:
            stub = Client(channel).stub
            calls = asyncio.gather(stub.Snapshot(save), stub.Restore(load), return_exceptions=True)
            await asyncio.sleep((turn - 1) * 0.004)  # the moment of the kill, not a wait for anything
            await agent.kill()
            await calls
        async with machine.served("--workers", "1") as client:
            await client.stub.Snapshot(save)
            await client.stub.Restore(load)
            assert (await finished(client, f"s{turn}")).status == COMPLETE
            assert (await finished(client, f"r{turn}")).status == COMPLETE
            await client.unlock(other, **fence)
        holder, other = other, holder
        assert [await target.tell("check") for target in jobs[holder]] == ["same", "same"]
        assert {machine.state_of(target.pid) for target in jobs[other]} == {"checkpointed"}
