"""Real processes, real calls: jobs take turns, and what clients do wrong or twice changes nothing."""

import asyncio
from pathlib import Path

import grpc

from cluster import LIMIT_S, Cluster, cluster, failure
from orchestrator.agents.fake import FakeAgent
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as agent_pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

SAVED, RUNNING = agent_pb.JOB_STATE_SAVED, agent_pb.JOB_STATE_RUNNING


async def test_row_6_two_jobs_take_turns_and_the_first_turn_of_each_needs_no_context(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        first = await up.hold("a")
        up.agent.put("a", "g")
        waiting = up.acquire("b")
        await up.queued(1)
        answer = await up.give_back(first)
        assert (answer.success, answer.pending_waiters, answer.snapshot_deferred) == (True, 1, False)
        reply = await waiting
        assert (reply.success, reply.context_restored) == (True, False)
        second = reply.leases[0]
        assert second.fencing_token > first.fencing_token
        assert up.agent.contexts["a", "g"].state == SAVED
        up.agent.put("b", "g")
        waiting = up.acquire("a")
        await up.queued(1)
        await up.give_back(second)
        reply = await waiting
        assert reply.context_restored
        assert up.agent.contexts["a", "g"].state == RUNNING
        assert not up.agent.contexts["a", "g"].locked
        assert up.agent.contexts["b", "g"].state == SAVED


async def test_a_lone_job_keeps_its_context_on_the_device(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        for _ in range(3):
            lease = await up.hold("a")
            up.agent.put("a", "g")
            answer = await up.give_back(lease)
            assert (answer.pending_waiters, answer.snapshot_deferred) == (0, True)
        assert up.agent.requests("Snapshot") == []
        status = await up.status()
        assert (status.group_state, status.loaded_job) == (pb.GroupStatus.STATE_IDLE_YIELDED, "a")


async def test_row_7_a_holder_that_never_used_the_device_leaves_nothing_to_save(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        assert (await waiting).success
        assert up.agent.requests("Snapshot") == []


async def test_row_2_a_waiter_that_was_cancelled_is_never_granted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        given_up, patient = up.acquire("b", "b-1"), up.acquire("c", "c-1")
        await up.queued(2)
        given_up.cancel()
        await up.queued(1)
        await up.give_back(lease)
        assert (await patient).leases[0].job_id == "c"
        await up.give_back((await patient).leases[0])
        status = await up.status()
        assert (status.waiter_queue_depth, status.HasField("lease")) == (0, False)


async def test_row_2_a_waiter_past_its_deadline_leaves_the_queue_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        call = up.stub.Acquire(pb.AcquireRequest(job_id="b", group_id="g", request_id="b-1"), timeout=0.2)
        assert (await failure(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        await up.queued(0)
        await up.give_back(lease)
        assert not (await up.status()).HasField("lease")


async def test_a_wait_slice_keeps_the_place_and_its_retry_attaches(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        queued = await up.acquire("b", "b-1", wait_ms=50)
        assert (queued.success, queued.queued) == (False, True)
        later = up.acquire("c", "c-1")
        await up.queued(2)
        again = up.acquire("b", "b-1")
        await up.give_back(lease)
        assert (await again).leases[0].job_id == "b"
        assert not later.done()
        later.cancel()


async def test_row_3_a_retried_acquire_gets_the_same_grant_and_never_a_second(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a", "a-1")
        assert (await up.hold("a", "a-1")).fencing_token == lease.fencing_token
        one, two = up.acquire("b", "b-1"), up.acquire("b", "b-1")
        await up.queued(1)
        await up.give_back(lease)
        assert (await one).leases[0].fencing_token == (await two).leases[0].fencing_token


async def test_row_3_a_grant_whose_reply_was_lost_is_given_to_the_retry(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        other, channel = up.client()
        lease = await up.hold("a")
        lost = asyncio.ensure_future(_acquire(other, "b", "b-1"))
        await up.queued(1)
        retried = up.acquire("b", "b-1")
        await channel.close()
        await asyncio.gather(lost, return_exceptions=True)
        await up.give_back(lease)
        assert (await retried).leases[0].job_id == "b"


async def test_row_4_a_late_yield_changes_nothing_and_a_repeated_one_is_answered_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        first = await up.hold("a")
        waiting = up.acquire("b")
        await up.queued(1)
        answer = await up.give_back(first)
        second = (await waiting).leases[0]
        assert await up.give_back(first) == answer
        status = await up.status()
        assert status.lease.fencing_token == second.fencing_token


async def test_row_8_a_job_that_does_not_hold_cannot_yield(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        for request in (pb.YieldRequest(job_id="b", group_id="g"),
                        pb.YieldRequest(job_id="b", group_id="g", fencing_token=lease.fencing_token)):
            code, text = await failure(up.stub.Yield(request))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "'b'" in text
        assert (await up.status()).lease.job_id == "a"


async def test_row_47_an_old_request_id_gets_no_second_lease(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        await up.give_back(await up.hold("a", "a-1"))
        code, _ = await failure(up.acquire("a", "a-1"))
        assert code is grpc.StatusCode.ABORTED


async def test_row_34_unknown_groups_and_huge_ids_are_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        code, text = await failure(up.acquire("a", group="nowhere"))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "'nowhere'" in text
        sizes = []
        for _ in range(3):
            for _ in range(20):
                code, text = await failure(up.acquire("x" * 10_000_000))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert text.startswith("job_id")
            sizes.append(resident_kib(up))
        assert sizes[2] < 200_000, sizes
        assert sizes[2] < sizes[0] + 60_000, sizes  # 400 MB were sent between the two


async def test_row_28_five_hundred_waiters_delay_nobody(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes={"n1": FakeAgent({"GPU-0": ["g"], "GPU-1": ["h"]})},
                       groups="group=g,group=h") as up:
        lease = await up.hold("a")
        waiting = [up.acquire(f"w{n}", f"w{n}-1") for n in range(500)]
        await up.queued(500)
        assert (await up.status("h")).group_id == "h"
        await up.give_back(await up.hold("b", group="h"))
        assert (await up.give_back(lease)).pending_waiters == 500
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_S)
        assert [task.result().leases[0].job_id for task in done] == ["w0"]
        for task in waiting:
            task.cancel()
        await up.queued(0)


async def test_hints_are_accepted_and_what_is_not_built_yet_is_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a", priority=3, expected_hold_ms=100, owner="team", participants=1)
        await up.stub.Yield(pb.YieldRequest(
            job_id="a", group_id="g", fencing_token=lease.fencing_token, expected_idle_ms=100, final=True))
        for call, field in (
            (up.acquire("a", additional_group_ids=["h"]), "additional_group_ids"),
            (up.acquire("a", participants=2), "participants"),
            (up.stub.Yield(pb.YieldRequest(job_id="a", group_id="g", accelerators=["n1/0"])), "accelerators"),
        ):
            code, text = await failure(call)
            assert code is grpc.StatusCode.UNIMPLEMENTED
            assert text.startswith(field)


async def test_a_waiter_can_be_dropped_and_a_lease_ended_by_an_operator(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        await up.hold("a")
        waiting = up.acquire("b", "b-1")
        await up.queued(1)
        answer = await up.stub.Evict(pb.EvictRequest(
            group_id="g", job_id="b", request_id="b-1", action=pb.EvictRequest.ACTION_DROP_WAITER))
        assert list(answer.actions)
        assert (await failure(waiting))[0] is grpc.StatusCode.ABORTED
        await up.stub.Evict(pb.EvictRequest(group_id="g", job_id="a", action=pb.EvictRequest.ACTION_END_LEASE))
        assert not (await up.status()).HasField("lease")


async def test_an_agent_of_the_old_contract_is_served_too(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--poll-first-s", "0.005", "--poll-last-s", "0.02",
                       nodes={"n1": FakeAgent({"GPU-0": ["g"]}, old_contract=True)}) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        await polled(up.agent)
        for holder, other in (("a", "b"), ("b", "a"), ("a", "b")):
            waiting = up.acquire(other)
            await up.queued(1)
            await up.give_back(lease)
            lease = (await waiting).leases[0]
            assert up.agent.contexts[holder, "g"].state == SAVED
            up.agent.put(other, "g", state=RUNNING)
            await polled(up.agent)


async def polled(agent: FakeAgent) -> None:
    """Wait until the agent was asked for its state and the answer was read: then it is asked once more."""
    await agent.called("Status", len(agent.requests("Status")) + 2)


async def _acquire(stub: object, job: str, request: str) -> object:
    return await stub.Acquire(  # type: ignore[attr-defined]
        pb.AcquireRequest(job_id=job, group_id="g", request_id=request))


def resident_kib(up: Cluster) -> int:
    assert up.process.process is not None
    lines = Path(f"/proc/{up.process.process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1])


async def test_configured_accelerators_are_compared_with_what_the_agent_says(tmp_path: Path) -> None:
    agent = FakeAgent({"GPU-a": ["h"], "GPU-b": ["g"], "GPU-c": ["h"]})
    async with cluster(tmp_path, nodes={"n1": agent}, groups="group=g:1,group=h:GPU-a") as up:
        status = await up.shows(lambda status: status.group_state == pb.GroupStatus.STATE_IDLE)
        assert (list(status.accelerators), list(status.conditions)) == (["n1/GPU-b"], [])
        [condition] = (await up.shows(lambda status: status.conditions, "h")).conditions
        assert condition.type == "Misconfigured"
