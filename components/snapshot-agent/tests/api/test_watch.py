"""Watch: everything first, then every change; and how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from node_under_test import GPU, GPU1, MIB, FakeNode, following
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.api.streams import StreamEnd, Streams


async def test_events_that_come_at_once_come_together_to_who_takes_that(node: FakeNode) -> None:
    async with node.up() as client:
        await client.register("a", "g", node.process(10 * MIB))
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_RUNNING)
        watch = client.stub.Watch(pb.WatchRequest(takes_together=True))
        assert (await watch.read()).WhichOneof("event") == "snapshot"
        await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="g", operation_id="s"))
        kinds: list[str | None] = []
        while "operation" not in kinds:
            message = await watch.read()
            kinds = [event.WhichOneof("event") for event in message.together]
        state = message.together[kinds.index("operation") - 1]
        assert state.job.state == pb.JOB_STATE_SAVED, "the new state before the end that brought it"
        numbers = [event.sequence for event in message.together]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {event.incarnation for event in message.together} != {""}


async def test_everything_comes_first_and_then_every_change_without_a_gap(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.process(10 * MIB)
        await client.register("a", "g", pid)
        await client.snapshot("a", id="s", fencing_token=3, leader_epoch=2)
        async with following(node.address) as second:
            first = second.events[0]
            assert [job.job_id for job in first.snapshot.job_statuses] == ["a"]
            assert [a.id for a in first.snapshot.accelerator_statuses] == [GPU, GPU1]
            assert [list(a.groups) for a in first.snapshot.accelerator_statuses] == [["g"], ["h"]]
            fences = {f.group: (f.fencing_token, f.leader_epoch) for f in first.snapshot.fences}
            assert fences == {"g": (3, 2), "h": (0, 2)}
            await client.restore("a", id="r", fencing_token=3, leader_epoch=2)
            await second.until(lambda: "r" in second.ended)
            for seen in (client, second):
                numbers = [event.sequence for event in seen.events]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert {event.incarnation for event in seen.events} == {"i1"}


async def test_a_new_agent_process_says_so(node: FakeNode) -> None:
    async with node.up() as client:
        assert client.events[0].incarnation == "i1"
    async with node.up() as client:
        assert client.events[0].incarnation == "i2"


async def test_streams_of_lower_epochs_end_and_observers_stay(node: FakeNode) -> None:
    async with node.up() as observer:
        old = observer.stub.Watch(pb.WatchRequest(leader_epoch=1))
        assert (await old.read()).WhichOneof("event") == "snapshot"
        new = observer.stub.Watch(pb.WatchRequest(leader_epoch=2))
        assert (await new.read()).WhichOneof("event") == "snapshot"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _end(old)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        refused = observer.stub.Watch(pb.WatchRequest(leader_epoch=1))
        with pytest.raises(grpc.aio.AioRpcError, match="leader epoch 1 is over"):
            await refused.read()
        pid = node.process()
        await observer.register("a", "g", pid)
        await observer.until(lambda: ("a", "g") in observer.jobs)


async def test_unmanaged_processes_and_memory_are_pushed(node: FakeNode) -> None:
    async with node.up() as client:
        node.driver.add(4242, {GPU: 5 * MIB})
        await client.until(lambda: GPU in client.accelerators and client.accelerators[GPU].unmanaged_pids == [4242])
        assert client.accelerators[GPU].memory_used_bytes == 5 * MIB
        assert client.accelerators[GPU].memory_total_bytes == 64 * MIB


async def test_growth_is_pushed(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.process(10 * MIB)
        await client.register("a", "g", pid)
        node.driver.processes[pid].memory[GPU] = 20 * MIB
        await client.until(lambda: client.jobs["a", "g"].device_bytes == 20 * MIB)


async def test_a_context_lives_as_long_as_one_of_its_processes(node: FakeNode) -> None:
    async with node.up() as client:
        first, second = node.targets.start(), node.targets.start()
        await client.register("a", "g", first.pid)
        await client.register("a", "g", second.pid)
        await client.until(lambda: sorted(client.jobs["a", "g"].pids) == sorted([first.pid, second.pid]))
        first.kill()
        await client.until(lambda: list(client.jobs["a", "g"].pids) == [second.pid])
        assert ("a", "g") not in client.gone
        second.kill()
        await client.until(lambda: ("a", "g") in client.gone)


async def test_metadata_says_that_a_registration_was_accepted(node: FakeNode) -> None:
    async with node.up() as client:
        channel = client.stub.WorkloadChannel()
        message = pb.RegisterWorkload(job_id="a", group="g", pids=[node.process(None)])
        await channel.write(pb.WorkloadMessage(register=message))
        async with asyncio.timeout(5.0):
            await channel.initial_metadata()
        await client.until(lambda: ("a", "g") in client.jobs)
        channel.cancel()


async def test_registrations_outlive_the_agent(node: FakeNode) -> None:
    async with node.up() as client:
        pid, gone = node.process(10 * MIB), node.targets.start()
        await client.register("a", "g", pid)
        await client.register("b", "h", gone.pid)
    gone.kill()
    gone.wait()
    async with node.up() as client:
        await client.until(lambda: set(client.jobs) == {("a", "g")})
        assert list(client.jobs["a", "g"].pids) == [pid]


async def test_jobs_of_several_contexts_are_merged_for_peers_without_groups(node: FakeNode) -> None:
    async with node.up() as client:
        here, there = node.process(10 * MIB), node.process(10 * MIB, GPU1)
        await client.register("a", "g", here)
        await client.register("a", "h", there)
        assert (await client.snapshot("a", "", id="s")).status == pb.OPERATION_STATUS_COMPLETE
        assert (await client.restore("a", "h", id="r")).status == pb.OPERATION_STATUS_COMPLETE
        [job] = (await client.stub.Status(pb.StatusRequest())).job_statuses
        assert (job.state, job.device_bytes, job.host_bytes) == (pb.JOB_STATE_SAVED, 10 * MIB, 10 * MIB)
        assert len((await client.stub.Status(pb.StatusRequest(per_context=True))).job_statuses) == 2


async def test_a_request_may_name_the_processes(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.process(10 * MIB)
        target = pb.CudaBackendConfig(explicit_target=pb.ProcessTarget(pids=[pid]))
        saved = await client.snapshot("a", id="s", backend_config=pb.BackendConfig(cuda=target))
        assert saved.snapshot_device_bytes == 10 * MIB


async def test_old_clients_poll(node: FakeNode) -> None:
    async with node.up() as client:
        await client.register("a", "g", node.process(10 * MIB))
        started = await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", backend=pb.BACKEND_CUDA))
        await client.until(lambda: started.operation_id in client.ended)
        polled = await client.stub.GetOperation(pb.GetOperationRequest(operation_id=started.operation_id))
        assert polled == client.ended[started.operation_id]


async def _end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def test_a_slow_reader_is_cut_off_and_others_are_not() -> None:
    streams = Streams("i", limit=3)
    slow, quick = streams.open(0, pb.StatusResponse()), streams.open(0, pb.StatusResponse())
    for _ in range(3):
        quick.events.clear()
        streams.publish(pb.AgentEvent(job=pb.JobStatus(job_id="a")))
    assert slow.end is StreamEnd.TOO_SLOW
    assert not slow.events, "memory is given back at once"
    assert quick.end is None


async def test_what_can_wait_goes_with_the_next_event_in_order() -> None:
    streams = Streams("i")
    stream = streams.open(0, pb.StatusResponse(), takes_together=True)
    await stream.next()
    for job, can_wait in (("a", True), ("b", True), ("c", False)):
        streams.publish(pb.AgentEvent(job=pb.JobStatus(job_id=job)), can_wait=can_wait)
        assert bool(stream.events) is not can_wait
    message = await stream.next()
    assert isinstance(message, pb.AgentEvent)
    assert [(event.job.job_id, event.sequence) for event in message.together] == [("a", 1), ("b", 2), ("c", 3)]


async def test_what_can_wait_goes_alone_if_nothing_else_comes() -> None:
    streams = Streams("i")
    stream = streams.open(0, pb.StatusResponse())
    await stream.next()
    streams.publish(pb.AgentEvent(job=pb.JobStatus(job_id="a")), can_wait=True)
    async with asyncio.timeout(5.0):
        message = await stream.next()
    assert isinstance(message, pb.AgentEvent)
    assert message.job.job_id == "a"


async def test_a_stream_does_not_hear_again_what_its_beginning_says() -> None:
    streams = Streams("i")
    first = streams.open(0, pb.StatusResponse())
    streams.publish(pb.AgentEvent(job=pb.JobStatus(job_id="a")), can_wait=True)
    second = streams.open(0, pb.StatusResponse())
    streams.publish(pb.AgentEvent(job=pb.JobStatus(job_id="b")))
    numbers = [[event.sequence for event in stream.events] for stream in (first, second)]
    assert numbers == [[0, 1, 2], [1, 2]]


@pytest.mark.parametrize("margin", [None, 0])
async def test_the_margin_of_a_small_gpu_is_a_sixteenth(make_node: Callable[..., FakeNode], margin: int | None) -> None:
    node = make_node(restore_margin_bytes=margin)
    async with node.up() as client:
        await client.register("a", "g", node.process(61 * MIB))
        await client.snapshot("a", id="s")
        back = await client.restore("a", id="r")
        if margin is None:
            assert "needed 65.0 MiB" in back.error
        else:
            assert back.status == pb.OPERATION_STATUS_COMPLETE
