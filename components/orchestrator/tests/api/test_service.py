"""The service between real calls and the core: requests are told once, ends noticed, answers brought back."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator.core.effects import (
    AnswerSession,
    NotifyLeaseLost,
    NotifyLeaseShared,
    Publish,
    Refuse,
    ReplyAcquired,
    ReplyEvicted,
    ReplyQueued,
    ReplyYielded,
)
from orchestrator.core.events import (
    AcquireRequested,
    CallCancelled,
    EvictRequested,
    SessionClosed,
    SessionRenewed,
    SessionStreamLost,
    YieldRequested,
)
from orchestrator.core.types import (
    CallId,
    Condition,
    ConditionKind,
    ContextState,
    ContextView,
    EvictAction,
    GroupId,
    GroupState,
    GroupView,
    JobId,
    NodeContextView,
    NodeId,
    ProcessRef,
    Refusal,
    RefusalCode,
    RequestId,
    SessionId,
    Share,
    WaiterView,
)
from served import LEASE, LIMIT_S, G, served
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

EPOCH_START = 3 << 32
SHARED_LEASE = replace(LEASE, shared=(Share(session=SessionId("s2")),))


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async with asyncio.timeout(LIMIT_S):
            await call
    return failed.value.code(), failed.value.details() or ""


async def test_an_acquire_is_told_with_all_its_fields_and_answered_with_the_lease(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        call = stub.Acquire(pb.AcquireRequest(
            job_id="a", group_id="g", request_id="r", session_id="s", wait_ms=1500, priority=2, expected_hold_ms=250,
            owner="team", participants=1))
        asked = await core.told(AcquireRequested)
        assert asked == AcquireRequested(
            call=asked.call, group=G, job=JobId("a"), request=RequestId("r"), session=SessionId("s"), wait_s=1.5,
            priority=2, expected_hold_s=0.25, owner="team")
        service.perform(ReplyAcquired(asked.call, LEASE, 0.0125, context_restored=True))
        reply = await call
        assert (reply.success, reply.waited_ms, reply.context_restored, reply.queued) == (True, 12, True, False)
        [lease] = reply.leases
        assert (lease.group_id, lease.job_id, lease.fencing_token, lease.ttl_ms) == ("g", "a", 7, 30_000)
        assert (lease.owner_session_id, list(lease.accelerators)) == ("s", ["n1/GPU-1"])
        assert lease.expires_at.ToMilliseconds() - lease.granted_at.ToMilliseconds() == pytest.approx(30_000, abs=1000)
        again = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g", request_id="r"))
        asked = await core.told(AcquireRequested, 2)
        assert (asked.session, asked.wait_s) == (None, None)
        service.perform(ReplyAcquired(asked.call, LEASE, 0.0, context_restored=False))
        assert (await again).leases[0].granted_at == lease.granted_at


async def test_a_wait_slice_that_is_over_is_answered_as_queued(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        call = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g", wait_ms=1))
        service.perform(ReplyQueued((await core.told(AcquireRequested)).call))
        reply = await call
        assert (reply.success, reply.queued) == (False, True)


@pytest.mark.parametrize("code", list(RefusalCode))
async def test_a_refusal_arrives_as_its_status_with_its_text(tmp_path: Path, code: RefusalCode) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        call = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g"))
        service.perform(Refuse((await core.told(AcquireRequested)).call, Refusal(code, "what happened; what to do")))
        status, text = await status_of(call)
        assert (status.name, text) == (code.name, "what happened; what to do")


async def test_row_2_a_cancelled_acquire_is_told_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, _, stub, _):
        call = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g"))
        asked = await core.told(AcquireRequested)
        call.cancel()
        assert await core.told(CallCancelled) == CallCancelled(asked.call)


async def test_row_2_an_acquire_past_its_deadline_is_told_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, _, stub, _):
        call = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g"), timeout=0.2)
        asked = await core.told(AcquireRequested)
        assert (await status_of(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await core.told(CallCancelled) == CallCancelled(asked.call)


async def test_row_2_an_acquire_whose_connection_breaks_is_told_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, _, stub, channel):
        call = asyncio.ensure_future(stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g")))
        asked = await core.told(AcquireRequested)
        await channel.close()
        assert await core.told(CallCancelled) == CallCancelled(asked.call)
        await asyncio.gather(call, return_exceptions=True)


async def test_a_call_that_was_answered_is_never_told_as_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, channel):
        call = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g"))
        service.perform(ReplyAcquired((await core.told(AcquireRequested)).call, LEASE, 0.0, context_restored=False))
        await call
        refused = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g"))
        asked = await core.told(AcquireRequested, 2)
        service.perform(Refuse(asked.call, Refusal(RefusalCode.ABORTED, "no")))
        await status_of(refused)
        await channel.close()
    assert core.count(CallCancelled) == 0


async def test_yield_and_evict_are_told_and_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        call = stub.Yield(pb.YieldRequest(
            job_id="a", group_id="g", fencing_token=7, session_id="s", expected_idle_ms=500, final=True))
        given = await core.told(YieldRequested)
        assert given == YieldRequested(
            call=given.call, group=G, job=JobId("a"), token=LEASE.token, session=SessionId("s"), expected_idle_s=0.5,
            final=True)
        service.perform(ReplyYielded(given.call, pending_waiters=3, snapshot_deferred=True))
        reply = await call
        assert (reply.success, reply.pending_waiters, reply.snapshot_deferred) == (True, 3, True)
        for action in EvictAction:
            wanted = pb.EvictRequest.Action.Value(f"ACTION_{action.name}")
            call = stub.Evict(pb.EvictRequest(
                group_id="g", job_id="a", reason="why", request_id="r", node="n1", action=wanted))
            told = await core.told(EvictRequested, core.count(EvictRequested) + 1)
            assert told == EvictRequested(
                call=told.call, group=G, action=action, job=JobId("a"), reason="why", request=RequestId("r"),
                node=NodeId("n1"))
            service.perform(ReplyEvicted(told.call, ("lease ended",)))
            assert list((await call).actions) == ["lease ended"]
        code, text = await status_of(stub.Evict(pb.EvictRequest(group_id="g")))
        assert (code, text.split(" ")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "action")


async def test_row_34_bad_input_never_reaches_the_core(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, _, stub, _):
        huge = "x" * 10_000_000
        for call, field in (
            (stub.Acquire(pb.AcquireRequest(job_id=huge, group_id="g")), "job_id"),
            (stub.Acquire(pb.AcquireRequest(job_id="a", group_id="")), "group_id"),
            (stub.Yield(pb.YieldRequest(job_id="a\0", group_id="g")), "job_id"),
            (stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id=huge)), "group_id"),
            (stub.Evict(pb.EvictRequest(group_id="\n")), "group_id"),
        ):
            code, text = await status_of(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith(field)
        code, text = await status_of(stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g", participants=3)))
        assert (code, text.split(" ")[0]) == (grpc.StatusCode.UNIMPLEMENTED, "participants")
        assert core.noted == []


async def test_the_whole_status_of_a_group_is_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, _, stub, _):
        context = ContextView(JobId("a"), G, ContextState.RUNNING, device_bytes=5, host_bytes=6, reason="why")
        core.views[G] = GroupView(
            group=G, state=GroupState.LOCKED, state_since_s=0.0, lease=LEASE, granted_at_s=0.0, loaded_job=JobId("a"),
            waiters=(WaiterView(JobId("b"), RequestId("r"), 1.5, 4),), resident_jobs=(JobId("c"), JobId("a")),
            held_share=0.5, handoffs_total=9, accelerators=("n1/GPU-1",),
            contexts=(NodeContextView(NodeId("n1"), context),),
            conditions=(Condition(ConditionKind.BLOCKED, "no room", 0.0, (JobId("c"),), "end c"),))
        answer = await stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id="g"))
        shown = answer.group
        assert (shown.group_id, shown.group_state) == ("g", pb.GroupStatus.STATE_LOCKED)
        assert (shown.locking_job, shown.active_job, shown.loaded_job) == ("a", "a", "a")
        assert shown.waiter_queue_depth == 1
        [waiter] = shown.waiters
        assert (waiter.job_id, waiter.waited_ms, waiter.priority, waiter.request_id) == ("b", 1500, 4, "r")
        assert (shown.lease.fencing_token, list(shown.resident_jobs), shown.held_share) == (7, ["c", "a"], 0.5)
        assert (shown.handoffs_total, list(shown.accelerators)) == (9, ["n1/GPU-1"])
        [condition] = shown.conditions
        assert (condition.type, condition.reason, list(condition.jobs)) == ("Blocked", "no room", ["c"])
        assert condition.advice == "end c"
        [seen] = answer.agent_job_states
        assert (seen.agent, seen.job_id, seen.job_state) == ("n1", "a", pb.SnapshotAgentJobState.STATE_RUNNING)
        assert (seen.reason, seen.device_bytes, seen.host_bytes) == ("why", 5, 6)
        core.views[G] = GroupView(group=G, state=GroupState.SWITCHING, state_since_s=0.0, next_job=JobId("b"))
        shown = (await stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id="g"))).group
        assert (shown.locking_job, shown.active_job, shown.HasField("lease")) == ("b", "", False)


async def test_groups_are_listed_and_unknown_ones_named(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, _, stub, _):
        assert list((await stub.ListGroups(pb.ListGroupsRequest())).group_ids) == ["g"]
        for call in (stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id="h")),
                     stub.WatchGroups(pb.WatchGroupsRequest(group_ids=["g", "h"])).read()):
            code, text = await status_of(call)
            assert code is grpc.StatusCode.NOT_FOUND
            assert "'h'" in text


async def test_every_renewal_of_a_session_is_told_and_its_answers_come_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        stream = stub.Session()
        request = pb.SessionRequest(
            session_id="s", job_id="a", ttl_ms=9000, processes=[pb.ProcessRef(node="n1", pid=4, start_time=8)])
        await stream.write(request)
        opened = await core.told(SessionRenewed)
        assert opened == SessionRenewed(
            stream=opened.stream, session=SessionId("s"), job=JobId("a"), ttl_s=9.0,
            processes=(ProcessRef(NodeId("n1"), 4, 8),))
        service.perform(AnswerSession(opened.stream, SessionId("s"), 9.0, (LEASE,)))
        answer = await stream.read()
        assert (answer.opened.ttl_ms, answer.opened.leases[0].fencing_token) == (9000, 7)
        await stream.write(request)
        assert (await core.told(SessionRenewed, 2)).stream == opened.stream
        service.perform(NotifyLeaseLost(opened.stream, SessionId("s"), LEASE, "evicted", will_resume=True))
        service.perform(AnswerSession(opened.stream, SessionId("s"), 9.0))
        lost = (await stream.read()).lost
        assert (lost.lease.fencing_token, lost.reason, lost.will_resume) == (7, "evicted", True)
        assert (await stream.read()).WhichOneof("notice") == "opened"
        service.perform(NotifyLeaseShared(opened.stream, SessionId("s"), SHARED_LEASE, "session 's2' shares it"))
        shared = (await stream.read()).shared
        assert (shared.lease.fencing_token, shared.lease.owner_session_id, shared.lease.attached) == (7, "s", 2)
        assert shared.other == "session 's2' shares it"
        await stream.done_writing()
        assert (await stream.read()).WhichOneof("notice") is None
        assert await stream.read() is grpc.aio.EOF
        assert await core.told(SessionClosed) == SessionClosed(opened.stream)
        assert core.count(SessionStreamLost) == 0


async def test_a_session_whose_stream_breaks_is_told_as_lost(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, _, stub, channel):
        stream = stub.Session()
        await stream.write(pb.SessionRequest(session_id="s", job_id="a"))
        opened = await core.told(SessionRenewed)
        await channel.close()
        assert await core.told_one_of(SessionStreamLost, SessionClosed) == SessionStreamLost(opened.stream)


class BrokenStream:
    """A server's side of a stream whose connection broke: reading ends before the call is cancelled, which grpc shows
    once in a hundred times, more often under load."""

    async def read(self) -> Any:
        return grpc.aio.EOF

    async def write(self, message: Any) -> None:
        raise grpc.aio.InternalError("the connection is gone")


async def test_a_broken_stream_of_which_only_reading_has_ended_is_not_taken_for_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, _, _):
        with pytest.raises(grpc.aio.InternalError):
            await service.Session(None, BrokenStream())
        assert await core.told_one_of(SessionStreamLost, SessionClosed) == SessionStreamLost(CallId(1))


async def test_a_session_can_be_refused_by_the_core_and_for_its_form(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        stream = stub.Session()
        await stream.write(pb.SessionRequest(session_id="s", job_id="a"))
        opened = await core.told(SessionRenewed)
        service.perform(Refuse(opened.stream, Refusal(RefusalCode.FAILED_PRECONDITION, "it ended")))
        assert await status_of(stream.read()) == (grpc.StatusCode.FAILED_PRECONDITION, "it ended")
        stream = stub.Session()
        await stream.write(pb.SessionRequest(job_id="a"))
        code, text = await status_of(stream.read())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith("session_id")


async def test_a_watcher_sees_the_state_first_and_then_every_change(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        core.views[GroupId("h")] = GroupView(group=GroupId("h"), state=GroupState.UNKNOWN, state_since_s=0.0)
        service.perform(Publish(group=G, kind="granted"))
        everything, only_g = stub.WatchGroups(pb.WatchGroupsRequest()), stub.WatchGroups(
            pb.WatchGroupsRequest(group_ids=["g"]))
        first = [await everything.read(), await everything.read()]
        assert [(e.kind, e.group.group_id, e.sequence) for e in first] == [
            ("state", "g", EPOCH_START + 1), ("state", "h", EPOCH_START + 1)]
        assert first[1].group.group_state == pb.GroupStatus.STATE_UNKNOWN
        assert (await only_g.read()).kind == "state"
        service.perform(Publish(group=GroupId("h"), kind="yielded"))
        service.perform(Publish(
            group=G, kind="restore_finished", job=JobId("a"), node=NodeId("n1"), duration_s=0.25, detail="20 MiB"))
        assert (await everything.read()).kind == "yielded"
        for stream in (everything, only_g):
            event = await stream.read()
            assert (event.kind, event.job_id, event.node, event.duration_ms, event.detail, event.sequence) == (
                "restore_finished", "a", "n1", 250, "20 MiB", EPOCH_START + 3)
            assert event.group.group_state == pb.GroupStatus.STATE_IDLE


async def test_a_watcher_that_comes_back_misses_nothing_that_is_remembered(tmp_path: Path) -> None:
    async with served(tmp_path, log_size=3) as (_, service, stub, _):
        for n in range(5):
            service.perform(Publish(group=G, kind=f"event_{n}"))
        stream = stub.WatchGroups(pb.WatchGroupsRequest(after_sequence=EPOCH_START + 3))
        assert [(await stream.read()).kind for _ in range(3)] == ["event_3", "event_4", "state"]
        stream = stub.WatchGroups(pb.WatchGroupsRequest(after_sequence=1))
        assert [(await stream.read()).kind for _ in range(4)] == ["event_2", "event_3", "event_4", "state"]


async def test_a_watcher_that_does_not_read_is_cut_off_and_costs_bounded_memory(tmp_path: Path) -> None:
    async with served(tmp_path, watch_limit=50) as (_, service, stub, _):
        stream = stub.WatchGroups(pb.WatchGroupsRequest())
        await stream.read()
        for _n in range(60):
            service.perform(Publish(group=G, kind="filler", detail="x" * 1000))
        async with asyncio.timeout(LIMIT_S):
            for _n in range(50):
                assert (await stream.read()).kind == "filler"
        assert (await status_of(stream.read()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_row_28_blocked_acquires_delay_nobody(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        waiting = [stub.Acquire(pb.AcquireRequest(job_id=f"j{n}", group_id="g")) for n in range(500)]
        await core.told(AcquireRequested, 500)
        call = stub.Yield(pb.YieldRequest(job_id="a", group_id="g"))
        service.perform(ReplyYielded((await core.told(YieldRequested)).call, 500, snapshot_deferred=False))
        assert (await call).pending_waiters == 500
        await stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id="g"))
        for one in waiting:
            one.cancel()
        await core.told(CallCancelled, 500)


async def test_health_is_served(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, _, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "timeslice_orchestrator.v1alpha1.TimeSliceOrchestratorService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        code, _ = await status_of(stub.Check(health_pb2.HealthCheckRequest(service="other")))
        assert code is grpc.StatusCode.NOT_FOUND


async def test_stopping_refuses_new_calls_and_ends_waiting_ones_without_telling_the_core(tmp_path: Path) -> None:
    async with served(tmp_path) as (core, service, stub, _):
        waiting = stub.Acquire(pb.AcquireRequest(job_id="a", group_id="g"))
        await core.told(AcquireRequested)
        session = stub.Session()
        await session.write(pb.SessionRequest(session_id="s", job_id="a"))
        await core.told(SessionRenewed)
        service.refuse_new()
        assert (await status_of(stub.Yield(pb.YieldRequest(job_id="a", group_id="g"))))[0] is (
            grpc.StatusCode.UNAVAILABLE)
        assert not waiting.done()
        await stub.GetGroupStatus(pb.GetGroupStatusRequest(group_id="g"))
        service.end_all()
        for call in (waiting, session.read()):
            code, text = await status_of(call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "request_id" in text
    assert core.count(CallCancelled) + core.count(SessionStreamLost) + core.count(SessionClosed) == 0


async def test_thousands_of_calls_at_once_are_all_answered(tmp_path: Path) -> None:
    """As when an orchestrator is back after a restart; gRPC's own limit would cancel some without a reason."""
    async with served(tmp_path) as (_, _, stub, _):
        calls = [stub.ListGroups(pb.ListGroupsRequest()) for _ in range(4000)]
        assert {len((await call).group_ids) for call in calls} == {1}
