"""Workloads that save themselves, through gRPC: commands, results, broken and replaced channels, restarts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from node_under_test import GPU, MIB, Client, FakeNode
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.processes import proc

BOTH = [pb.SUSPEND_MODE_OFFLOAD, pb.SUSPEND_MODE_DISCARD]


class Workload:
    """One channel of a workload; the test plays what it does."""

    def __init__(self, client: Client) -> None:
        self._call: Any = client.stub.WorkloadChannel()

    async def register(self, job: str, group: str = "g", **fields: Any) -> None:
        fields.setdefault("capabilities", pb.WorkloadCapabilities(supported_modes=BOTH, tags=["weights"]))
        message = pb.RegisterWorkload(job_id=job, group=group, **fields)
        await self._call.write(pb.WorkloadMessage(register=message))
        metadata = dict(await self._call.initial_metadata())
        if "timeslice-registered" not in metadata:
            await self._call.read()  # raises why not

    async def command(self) -> pb.AgentCommand:
        async with asyncio.timeout(20):
            command = await self._call.read()
        assert command is not grpc.aio.EOF
        return command

    async def say(self, command: pb.AgentCommand, error: str = "") -> None:
        result = pb.CommandResult(command_id=command.command_id, ok=not error, error=error)
        await self._call.write(pb.WorkloadMessage(result=result))

    async def close(self) -> grpc.StatusCode:
        await self._call.done_writing()
        return await self._call.code()

    def break_off(self) -> None:
        self._call.cancel()

    async def ended_with(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(20):
            return await self._call.code(), await self._call.details()


@asynccontextmanager
async def registered(client: Client, job: str, group: str = "g", **fields: Any) -> AsyncIterator[Workload]:
    workload = Workload(client)
    await workload.register(job, group, **fields)
    await client.until(lambda: (job, group) in client.jobs)
    yield workload
    workload.break_off()


def instance(node: FakeNode, pid: int | None = None, **fields: Any) -> pb.WorkloadInstance:
    """A process that serves callbacks, as a workload of ours says it."""
    facts = proc.facts(pid or node.targets.start().pid)
    assert facts is not None
    return pb.WorkloadInstance(id=f"i-{facts.id.pid}", pid=facts.id.pid, start_time=facts.id.start_time, **fields)


def begin(client: Client, job: str, id: str, **fields: Any) -> Any:
    return client.stub.Snapshot(pb.SnapshotRequest(job_id=job, group="g", operation_id=id, **fields))


def shows(client: Client, job: str, state: int) -> Any:
    return client.until(lambda: (found := client.jobs.get((job, "g"))) and found.state == state and found)


async def test_a_workload_is_saved_and_restored_over_its_channel(node: FakeNode) -> None:
    async with node.up() as client, registered(client, "a") as workload:
        job = await shows(client, "a", pb.JOB_STATE_RUNNING)
        assert (job.backend, job.locked, list(job.pids)) == ("app_channel", False, [])
        await begin(client, "a", "s")
        command = await workload.command()
        assert command.snapshot == pb.SnapshotCommand(mode=pb.SUSPEND_MODE_OFFLOAD, tags=["weights"])
        assert "s" not in client.ended
        await workload.say(command)
        await shows(client, "a", pb.JOB_STATE_SAVED)
        ended = await client.until(lambda: client.ended.get("s"))
        assert ended.status == pb.OPERATION_STATUS_COMPLETE
        assert ended.step_us["snapshot"] > 0
        asked = await client.stub.GetOperation(pb.GetOperationRequest(operation_id="s"))
        assert asked == ended
        await client.stub.Restore(pb.RestoreRequest(job_id="a", group="g", operation_id="r", leave_locked=True))
        command = await workload.command()
        assert command.restore == pb.RestoreCommand(tags=["weights"])
        await workload.say(command)
        await client.until(lambda: client.ended.get("r"))
        assert (await shows(client, "a", pb.JOB_STATE_RUNNING)).locked is False
        assert list((await client.lock("a")).locked_pids) == []
        await client.unlock("a")
        assert not [call for call in node.driver.calls if call[1] != 0], "the driver was not asked for anything"


async def test_what_was_dropped_is_told_with_the_result_and_the_status(node: FakeNode) -> None:
    async with node.up() as client, registered(client, "a") as workload:
        config = pb.AppChannelConfig(mode=pb.SUSPEND_MODE_DISCARD, tags=["weights", "kv_cache"])
        await begin(client, "a", "s", backend_config=pb.BackendConfig(app_channel=config))
        command = await workload.command()
        assert command.snapshot == pb.SnapshotCommand(mode=pb.SUSPEND_MODE_DISCARD, tags=["weights", "kv_cache"])
        await workload.say(command)
        ended = await client.until(lambda: client.ended.get("s"))
        assert list(ended.discarded_tags) == ["weights", "kv_cache"]
        assert list((await shows(client, "a", pb.JOB_STATE_SAVED)).discarded_tags) == ["weights", "kv_cache"]
        [merged] = (await client.stub.Status(pb.StatusRequest())).job_statuses
        assert (merged.backend, list(merged.discarded_tags)) == ("app_channel", ["weights", "kv_cache"])


async def test_a_registration_says_how_unless_a_request_does(node: FakeNode) -> None:
    config = pb.BackendConfig(app_channel=pb.AppChannelConfig(mode=pb.SUSPEND_MODE_DISCARD, tags=["kv_cache"]))
    async with node.up() as client, registered(client, "a", backend_config=config) as workload:
        await begin(client, "a", "s")
        command = await workload.command()
        assert command.snapshot == pb.SnapshotCommand(mode=pb.SUSPEND_MODE_DISCARD, tags=["kv_cache"])


async def test_a_mode_that_the_workload_does_not_support_is_refused_with_those_that_it_does(node: FakeNode) -> None:
    only = pb.WorkloadCapabilities(supported_modes=[pb.SUSPEND_MODE_OFFLOAD])
    config = pb.BackendConfig(app_channel=pb.AppChannelConfig(mode=pb.SUSPEND_MODE_DISCARD))
    async with node.up() as client, registered(client, "a", capabilities=only):
        with pytest.raises(grpc.aio.AioRpcError, match="mode discard; it supports offload") as caught:
            await begin(client, "a", "s", backend_config=config)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_workload_need_not_name_the_only_group(make_node: Callable[..., FakeNode]) -> None:
    node = make_node(groups={"g": [GPU]})
    async with node.up() as client:
        workload = Workload(client)
        await workload.register("a", "")
        assert await client.until(lambda: ("a", "g") in client.jobs)
        workload.break_off()


async def test_a_failure_is_told_in_the_workloads_own_words(node: FakeNode) -> None:
    async with node.up() as client, registered(client, "a") as workload:
        await begin(client, "a", "s")
        await workload.say(await workload.command(), "RuntimeError: no host memory")
        ended = await client.until(lambda: client.ended.get("s"))
        assert ended.status == pb.OPERATION_STATUS_FAILED
        assert ended.rolled_back
        assert "RuntimeError: no host memory" in ended.error
        await shows(client, "a", pb.JOB_STATE_RUNNING)


async def test_a_slow_workload_is_told_of_at_the_deadline_and_believed_when_it_says(node: FakeNode) -> None:
    async with node.up() as client, registered(client, "a") as workload:
        await begin(client, "a", "s", timeout_ms=50)
        command = await workload.command()
        late = await client.until(lambda: client.ended.get("s"))
        assert late.indeterminate
        await shows(client, "a", pb.JOB_STATE_TRANSITIONING)
        pid = node.process(10 * MIB)
        await client.register("b", "g", pid)
        assert (await client.snapshot("b", id="other")).status == pb.OPERATION_STATUS_COMPLETE
        await workload.say(command)
        await shows(client, "a", pb.JOB_STATE_SAVED)
        await client.until(lambda: client.ended["s"].status == pb.OPERATION_STATUS_COMPLETE)


async def test_a_workload_that_closes_its_channel_is_gone(node: FakeNode) -> None:
    async with node.up() as client, registered(client, "a", instance=instance(node)) as workload:
        assert await workload.close() is grpc.StatusCode.OK
        await client.until(lambda: ("a", "g") in client.gone)


async def test_a_workload_whose_process_is_killed_is_gone_with_its_operation(node: FakeNode) -> None:
    async with node.up() as client:
        server = node.targets.start()
        async with registered(client, "a", instance=instance(node, server.pid)) as workload:
            assert list(client.jobs["a", "g"].pids) == [server.pid]
            await begin(client, "a", "s")
            await workload.command()
            server.kill()
            ended = await client.until(lambda: client.ended.get("s"))
            assert ended.error.startswith("gone: ")
            assert ("a", "g") in client.gone
            assert (await workload.ended_with())[0] is grpc.StatusCode.NOT_FOUND


async def test_kill_reaches_the_process_that_serves_the_callbacks(node: FakeNode) -> None:
    async with node.up() as client:
        server = node.targets.start()
        async with registered(client, "a", instance=instance(node, server.pid)):
            assert list((await client.kill("a")).killed_pids) == [server.pid]
            await client.until(lambda: ("a", "g") in client.gone)


@pytest.mark.parametrize("start_time", [0, 1])
async def test_a_process_that_is_not_what_the_workload_says_is_not_taken_for_it(
    node: FakeNode, start_time: int
) -> None:
    async with node.up() as client:
        wrong = pb.WorkloadInstance(id="i", pid=node.targets.start().pid, start_time=start_time)
        async with registered(client, "a", instance=wrong):
            assert list(client.jobs["a", "g"].pids) == []
        own = pb.WorkloadInstance(id="j", pid=os.getpid(), start_time=proc.facts(os.getpid()).id.start_time)  # type: ignore[union-attr]
        async with registered(client, "b", instance=own):
            assert list(client.jobs["b", "g"].pids) == [], "the agent itself must not be killed for a job"


async def test_a_newcomer_ends_the_channel_before_it(node: FakeNode) -> None:
    async with node.up() as client, registered(client, "a", instance=instance(node)) as old:
        async with registered(client, "a", instance=instance(node)) as new:
            code, text = await old.ended_with()
            assert code is grpc.StatusCode.ABORTED
            assert "another workload has registered" in text
            await begin(client, "a", "s")
            await new.say(await new.command())
            await client.until(lambda: client.ended.get("s"))
            assert ("a", "g") not in client.gone


async def test_one_that_was_replaced_while_it_was_away_is_refused(node: FakeNode) -> None:
    async with node.up() as client:
        first = instance(node)
        async with registered(client, "a", instance=first):
            pass
        async with registered(client, "a", instance=instance(node)):
            first.returns = True
            with pytest.raises(grpc.aio.AioRpcError, match="another workload has registered") as caught:
                await Workload(client).register("a", instance=first)
            assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_a_result_that_was_lost_with_its_channel_is_told_by_the_next_one(node: FakeNode) -> None:
    async with node.up() as client:
        who = instance(node)
        async with registered(client, "a", instance=who) as workload:
            await begin(client, "a", "s")
            command = await workload.command()
        who.results.add(command_id=command.command_id, ok=True)
        who.returns = who.saved = True
        async with registered(client, "a", instance=who):
            ended = await client.until(lambda: client.ended.get("s"))
            assert ended.status == pb.OPERATION_STATUS_COMPLETE
            await shows(client, "a", pb.JOB_STATE_SAVED)


async def test_a_restart_of_the_agent_loses_neither_a_saved_workload_nor_a_command_under_way(node: FakeNode) -> None:
    who = instance(node)
    async with node.up() as client, registered(client, "a", instance=who) as workload:
        await begin(client, "a", "s")
        await workload.say(await workload.command())
        await shows(client, "a", pb.JOB_STATE_SAVED)
    who.returns = who.saved = True
    async with node.up() as client:
        job = client.jobs["a", "g"]
        assert job.state == pb.JOB_STATE_SAVED
        assert "not connected" in job.reason
        async with registered(client, "a", instance=who) as workload:
            await client.stub.Restore(pb.RestoreRequest(job_id="a", group="g", operation_id="r", timeout_ms=60_000))
            command = await workload.command()
    who.running_command_id = command.command_id
    async with node.up() as client, registered(client, "a", instance=who) as workload:
        await shows(client, "a", pb.JOB_STATE_TRANSITIONING)
        await workload.say(command)
        await client.until(lambda: client.ended.get("r"))
        await shows(client, "a", pb.JOB_STATE_RUNNING)


async def test_processes_may_have_callbacks(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.process(10 * MIB)
        async with registered(client, "a", pids=[pid]) as workload:
            job = await shows(client, "a", pb.JOB_STATE_RUNNING)
            assert (job.backend, list(job.pids), job.device_bytes) == ("app_channel", [pid], 10 * MIB)
            await begin(client, "a", "s")
            await workload.say(await workload.command())
            await shows(client, "a", pb.JOB_STATE_SAVED)


async def test_processes_that_name_the_driver_are_saved_by_it_whatever_else_they_can(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.process(10 * MIB)
        config = pb.BackendConfig(cuda=pb.CudaBackendConfig(explicit_target=pb.ProcessTarget(pids=[pid])))
        async with registered(client, "a", backend_config=config):
            assert client.jobs["a", "g"].backend == "cuda"
            assert (await client.snapshot("a", id="s")).status == pb.OPERATION_STATUS_COMPLETE
