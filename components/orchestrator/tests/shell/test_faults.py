"""Killed, stopped, hung and broken processes: what the failure table promises, with real processes and real calls."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster import LIMIT_S, Cluster, cluster, failure
from orchestrator.agents.fake import Behaviour, FakeAgent, Outcome
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as agent_pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

SAVED, RUNNING = agent_pb.JOB_STATE_SAVED, agent_pb.JOB_STATE_RUNNING
SWITCHING = pb.GroupStatus.STATE_SWITCHING


def node(*groups: str) -> FakeAgent:
    return FakeAgent({f"GPU-{group}": [group] for group in groups or ("g",)})


async def open_session(up: Cluster, session: str, job: str, *pids: int, ttl_ms: int = 30_000) -> grpc.aio.Channel:
    """A client that lives as long as its connection, which is returned."""
    stub, channel = up.client()
    stream = stub.Session()
    await stream.write(pb.SessionRequest(
        session_id=session, job_id=job, ttl_ms=ttl_ms,
        processes=[pb.ProcessRef(node="n1", pid=pid, start_time=1) for pid in pids]))
    assert (await stream.read()).opened.ttl_ms > 0
    return channel


async def test_row_1_a_killed_holders_group_goes_to_the_next_waiter_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        connection = await open_session(up, "s-a", "a", 11)
        await up.hold("a", "a-1", session_id="s-a")
        up.agent.put("a", "g", pids=[11])
        await up.shows(lambda status: "a" in status.resident_jobs)  # else nobody can tell that it ends
        waiting = up.acquire("b")
        await up.queued(1)
        up.agent.remove("a", "g")
        await connection.close()
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).leases[0].job_id == "b"


async def test_row_1_a_holder_of_which_only_the_stream_broke_keeps_its_lease(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--session-ttl-s", "0.3") as up:
        connection = await open_session(up, "s-a", "a", 11)
        up.agent.put("a", "g", pids=[11], locked=True)
        await up.shows(lambda status: "a" in status.resident_jobs)  # else nobody attests the session
        lease = await up.hold("a", "a-1", session_id="s-a")
        waiting = up.acquire("b")
        await up.queued(1)
        await connection.close()
        await up.shows(lambda status: any(c.type == "Starved" for c in status.conditions))
        assert (await up.status()).lease.fencing_token == lease.fencing_token
        assert not waiting.done()
        waiting.cancel()


async def test_row_1_a_holder_without_processes_is_gone_when_its_stream_is(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--session-ttl-s", "0.3") as up:
        connection = await open_session(up, "s-a", "a")
        await up.hold("a", "a-1", session_id="s-a")
        waiting = up.acquire("b")
        await up.queued(1)
        await connection.close()
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).leases[0].job_id == "b"


async def test_row_16_a_silent_agents_group_is_unknown_and_goes_on_when_it_returns(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--unreachable-after-s", "0.3", nodes={"n1": node()}) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        waiting = up.acquire("b")
        await up.queued(1)
        await up.agent.stop()
        await up.shows(lambda status: any(c.type == "Unreachable" for c in status.conditions))
        assert (await up.status()).group_state == pb.GroupStatus.STATE_UNKNOWN
        await up.give_back(lease)
        assert (await up.status()).waiter_queue_depth == 1
        up.agent.restarted()
        await up.agent.start(f"unix:{tmp_path}/n1.sock")
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).leases[0].job_id == "b"
        assert up.agent.contexts["a", "g"].state == SAVED


async def test_row_40_an_agent_that_never_answers_stops_only_its_own_groups(tmp_path: Path) -> None:
    hung, well = node("g"), node("h")
    flags = ("--agent", f"n2=unix:{tmp_path}/n2.sock,group=h", "--call-timeout-s", "0.3",
             "--unreachable-after-s", "0.3")
    await well.start(f"unix:{tmp_path}/n2.sock")
    for method in ("Watch", "Status", "Lock", "Unlock", "Snapshot", "Restore", "GetOperation"):
        hung.always(method, Behaviour(hang=True))
    async with cluster(tmp_path, *flags, nodes={"n1": hung}) as up:
        waiting = up.acquire("a")
        await up.queued(1)
        for _ in range(10):
            await up.give_back(await up.hold("b", group="h"))
        await up.shows(lambda status: status.group_state == pb.GroupStatus.STATE_UNKNOWN)
        assert not waiting.done()
        for method in ("Watch", "Status", "Lock", "Unlock", "Snapshot", "Restore", "GetOperation"):
            hung.always(method, None)
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).success
    await well.stop()


async def test_row_18_killed_with_a_holder_and_waiters_it_goes_on_in_the_old_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a", "a-1")
        up.agent.put("a", "g")
        old = []
        for n in range(3):
            old.append(up.acquire(f"w{n}", f"w{n}-1"))
            await up.queued(n + 1)
        await up.recorded(3)
        await up.process.kill()
        for call in old:
            assert (await failure(call))[0] is grpc.StatusCode.UNAVAILABLE
        started = time.monotonic()
        await up.process.start()
        status = await up.status()
        assert time.monotonic() - started < 10
        assert status.lease.fencing_token == lease.fencing_token
        retried = [up.acquire(f"w{n}", f"w{n}-1") for n in (2, 1, 0)]
        await up.queued(3)
        await up.give_back(lease)
        token = lease.fencing_token
        for n in (0, 1, 2):
            async with asyncio.timeout(LIMIT_S):
                reply = await retried[2 - n]
            assert reply.leases[0].job_id == f"w{n}"
            assert reply.leases[0].fencing_token > token
            token = reply.leases[0].fencing_token
            await up.give_back(reply.leases[0])


async def test_row_18_killed_in_the_middle_of_a_switch_it_finishes_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a", "a-1")
        up.agent.put("a", "g")
        up.agent.put("b", "g", state=SAVED, locked=True)
        gate = asyncio.Event()
        up.agent.next("Snapshot", Behaviour(gate=gate))
        old = up.acquire("b", "b-1")
        await up.queued(1)
        await up.give_back(lease)
        await up.agent.called("Snapshot")
        await up.restart()
        await failure(old)
        waiting = up.acquire("b", "b-1")
        await up.shows(lambda status: status.group_state == SWITCHING)
        gate.set()
        async with asyncio.timeout(LIMIT_S):
            reply = await waiting
        assert reply.leases[0].fencing_token > lease.fencing_token
        assert (up.agent.contexts["a", "g"].state, up.agent.contexts["b", "g"].state) == (SAVED, RUNNING)
        assert len(up.agent.requests("Snapshot")) == 1


async def test_row_18_a_token_never_falls_however_often_it_is_killed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        token = 0
        for n in range(4):
            lease = await up.hold("a", f"a-{n}")
            assert lease.fencing_token > token
            token = lease.fencing_token
            await up.give_back(lease)
            await up.restart()


async def test_row_18_a_client_that_was_never_answered_yields_only_once(tmp_path: Path) -> None:
    """The Yield was recorded, its answer was lost with the process: the repeated call is answered as the first."""
    async with cluster(tmp_path) as up:
        lease = await up.hold("a", "a-1")
        first = await up.give_back(lease)
        await up.restart()
        assert (await up.give_back(lease)).success == first.success
        assert not (await up.status()).HasField("lease")


async def test_row_33_on_sigterm_the_switch_under_way_is_finished_first(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        gate = asyncio.Event()
        up.agent.next("Snapshot", Behaviour(gate=gate))
        waiting = up.acquire("b", "b-1")
        later = up.acquire("c", "c-1")
        await up.queued(2)
        await up.give_back(lease)
        await up.agent.called("Snapshot")
        up.process.signal(signal.SIGTERM)
        await up.shows(lambda status: status.group_state == SWITCHING)
        gate.set()
        assert (await waiting).leases[0].job_id == "b"
        assert (await failure(later))[0] is grpc.StatusCode.UNAVAILABLE
        assert await up.process.ended() == 0
        assert "o.sock" not in os.listdir(tmp_path)
        assert [line["msg"] for line in up.process.lines][-1] == "orchestrator stopped"


async def test_row_33_a_switch_that_does_not_end_is_left_to_the_next_start(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--stop-grace-s", "0.2") as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        gate = asyncio.Event()
        up.agent.next("Snapshot", Behaviour(gate=gate))
        waiting = up.acquire("b", "b-1")
        await up.queued(1)
        await up.give_back(lease)
        await up.agent.called("Snapshot")
        assert await up.process.terminate() == 0
        await failure(waiting)
        await up.process.start()
        waiting = up.acquire("b", "b-1")
        gate.set()
        assert (await waiting).leases[0].job_id == "b"


async def test_row_10_a_save_that_was_rolled_back_once_is_tried_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        up.agent.next("Snapshot", Behaviour(outcome=Outcome.ROLLED_BACK))
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        assert (await waiting).success
        assert up.agent.contexts["a", "g"].state == SAVED


async def test_row_14_a_job_that_ends_while_it_is_saved_is_no_fault(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        up.agent.next("Snapshot", Behaviour(outcome=Outcome.GONE))
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        assert (await waiting).success
        assert not (await up.status()).conditions


async def test_a_lost_reply_to_a_snapshot_is_looked_up_and_not_repeated(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        up.agent.next("Snapshot", Behaviour(lose_reply=True))
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        assert (await waiting).success
        assert len({request.operation_id for request in up.agent.requests("Snapshot")}) == 1


async def test_row_15_an_agent_that_restarts_in_the_middle_of_a_save_needs_no_help(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        lease = await up.hold("a")
        up.agent.put("a", "g")
        up.agent.next("Snapshot", Behaviour(gate=asyncio.Event()))
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        await up.agent.called("Snapshot")
        await up.agent.stop()
        up.agent.restarted()
        up.agent.contexts["a", "g"].state = RUNNING  # rolled back at its start
        up.agent.contexts["a", "g"].locked = False
        await up.agent.start(f"unix:{tmp_path}/n1.sock")
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).success
        assert up.agent.contexts["a", "g"].state == SAVED


async def test_row_38_a_saved_job_is_granted_only_when_it_is_back(tmp_path: Path) -> None:
    agent = node()
    agent.put("a", "g", state=SAVED, locked=True)
    async with cluster(tmp_path, nodes={"n1": agent}) as up:
        reply = await up.acquire("a")
        assert reply.context_restored
        assert agent.contexts["a", "g"].state == RUNNING


@pytest.mark.parametrize("seen", [50, 1])
async def test_row_42_a_lost_store_is_taken_up_above_what_agents_know(tmp_path: Path, seen: int) -> None:
    """Also where the new store begins at the very epoch that agents know: ids of operations would come again."""
    agent = node()
    agent.epoch, agent.tokens["g"] = seen, 900
    async with cluster(tmp_path, nodes={"n1": agent}) as up:
        lease = await up.hold("a")
        assert lease.fencing_token > 900
        assert agent.epoch > seen


async def test_row_42_a_holder_that_says_so_goes_on(tmp_path: Path) -> None:
    agent = node()
    agent.epoch, agent.tokens["g"] = 1, 900
    agent.put("a", "g", state=RUNNING)
    async with cluster(tmp_path, "--claims-wait-s", "30", nodes={"n1": agent}) as up:
        waiting = up.acquire("b")
        await up.queued(1)
        session = up.stub.Session()
        held = [pb.HeldLease(group_id="g", fencing_token=900)]
        await session.write(pb.SessionRequest(session_id="s", job_id="a", held=held))
        notice = await session.read()
        assert [(lease.job_id, lease.fencing_token) for lease in notice.opened.leases] == [("a", 900)]
        assert not agent.contexts["a", "g"].locked
        await up.stub.Yield(pb.YieldRequest(job_id="a", group_id="g", session_id="s", fencing_token=900))
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).leases[0].fencing_token > 900
        session.cancel()


async def test_row_42_an_agent_that_comes_later_and_knows_more_is_taken_up_above_too(tmp_path: Path) -> None:
    agent = node()
    agent.epoch, agent.tokens["g"] = 50, 900
    async with cluster(tmp_path, nodes={"n1": agent}, are_started=False) as up:
        waiting = up.acquire("a", "a-1")
        await up.queued(1)
        await agent.start(f"unix:{tmp_path}/n1.sock")
        await failure(waiting)
        lease = await up.hold("a", "a-1")
        assert lease.fencing_token > 900
        assert agent.epoch > 50
        assert await up.process.terminate() == 0


async def test_row_42_an_agent_that_comes_later_takes_no_new_operation_for_one_of_before(tmp_path: Path) -> None:
    """Where the lost store begins at the very epoch that the agent knows, their ids would be the same."""
    agent = node()
    agent.put("a", "g", state=RUNNING)
    agent.put("b", "g", state=SAVED, locked=True)
    (tmp_path / "lost").mkdir()
    async with cluster(tmp_path / "lost", nodes={"n1": agent}) as up:
        await up.hold("b")
        assert [name.partition("-")[0] for name in agent.operations] == ["restore"]
    agent.put("a", "g", state=SAVED, locked=True)
    agent.put("b", "g", state=RUNNING)
    async with cluster(tmp_path, nodes={"n1": agent}, are_started=False) as up:
        waiting = up.acquire("a")
        await up.queued(1)
        await agent.start(f"unix:{tmp_path}/n1.sock")
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).success
        assert agent.contexts["a", "g"].state == RUNNING


async def test_row_19_a_deposed_orchestrator_stops(tmp_path: Path) -> None:
    async with cluster(tmp_path) as up:
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/n1.sock") as channel:
            watch = channel.unary_stream(
                "/snapshot_agent.v1alpha1.SnapshotAgentService/Watch",
                request_serializer=agent_pb.WatchRequest.SerializeToString,
                response_deserializer=agent_pb.AgentEvent.FromString)(agent_pb.WatchRequest(leader_epoch=99))
            await watch.read()
            assert await up.process.ended() == 1
            assert "another orchestrator leads" in up.process.lines[-1]["msg"]


async def test_several_nodes_are_switched_side_by_side(tmp_path: Path) -> None:
    nodes = {f"n{n}": FakeAgent({f"GPU-{n}": ["g"]}) for n in range(4)}
    async with cluster(tmp_path, nodes=nodes) as up:
        lease = await up.hold("a")
        gate = asyncio.Event()
        for agent in nodes.values():
            agent.put("a", "g")
            agent.next("Snapshot", Behaviour(gate=gate))
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        for agent in nodes.values():
            await agent.called("Snapshot")
            assert agent.requests("Lock")
        gate.set()
        assert (await waiting).success
        assert len((await up.status()).accelerators) == 4


async def test_row_11_an_agent_that_cannot_kill_leaves_the_group_blocked(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--on-unsaveable", "g=kill", "--kill-grace-s", "0.1") as up:
        up.agent.put("b", "g", state=SAVED)
        lease = await up.hold("a")
        up.agent.put("a", "g")
        for method in ("Snapshot", "Lock"):
            up.agent.always(method, Behaviour(outcome=Outcome.ROLLED_BACK))
        up.agent.always("Kill", Behaviour(code=grpc.StatusCode.UNIMPLEMENTED))
        waiting = up.acquire("b")
        await up.queued(1)
        await up.give_back(lease)
        async with asyncio.timeout(LIMIT_S):
            await up.agent.called("Kill")
        wanted = {"Blocked", "KillFailed"}
        await up.shows(lambda status: {c.type for c in status.conditions if c.jobs == ["a"]} == wanted)
        await up.process.logged(lambda line: line.get("kind") == "kill_failed" and line["level"] == "warning")
        assert not waiting.done()
        up.agent.remove("a", "g")  # by hand
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).context_restored


async def test_an_operator_kills_where_the_node_answers_and_is_told_where_it_does_not(tmp_path: Path) -> None:
    async with cluster(tmp_path, "--unreachable-after-s", "0.2") as up:
        kill = pb.EvictRequest(group_id="g", job_id="a", action=pb.EvictRequest.ACTION_KILL, reason="stuck")
        code, text = await failure(up.stub.Evict(kill))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "no processes of job 'a'" in text
        await up.hold("a")
        up.agent.put("a", "g", pids=[7])
        up.agent.put("b", "g", state=SAVED)
        waiting = up.acquire("b")
        await up.shows(lambda status: status.resident_jobs == ["a"])
        await up.agent.stop()
        await up.shows(lambda status: any(c.type == "Unreachable" for c in status.conditions))
        assert "node 'n1' is not connected: nobody is killed" in (await up.stub.Evict(kill)).actions[0]
        await up.agent.start(f"unix:{tmp_path}/n1.sock")
        await up.shows(lambda status: not any(c.type == "Unreachable" for c in status.conditions))
        assert list((await up.stub.Evict(kill)).actions) == ["processes [7] on node 'n1' are being killed"]
        async with asyncio.timeout(LIMIT_S):
            await up.agent.settled(lambda: ("a", "g") not in up.agent.contexts)
        [request] = up.agent.requests("Kill")
        assert (request.reason, request.leader_epoch, request.fencing_token > 0) == ("stuck", 1, True)
        assert set(up.agent.contexts) == {("b", "g")}
        waiting.cancel()


async def test_row_5_missed_renewals_on_a_living_stream_are_told_to_watchers_and_end_with_the_next_one(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as up:
        session = up.stub.Session()
        renewal = pb.SessionRequest(session_id="s", job_id="a", ttl_ms=1000)
        await session.write(renewal)
        await session.read()
        watch = up.stub.WatchGroups(pb.WatchGroupsRequest(group_ids=["g"]))
        await up.hold("a", session_id="s")
        async with asyncio.timeout(LIMIT_S):
            event = await next_event(watch, "starved")
            assert (event.job_id, "session 's'" in event.detail) == ("a", True)
            assert [condition.type for condition in event.group.conditions] == ["Starved"]
            await session.write(renewal)
            event = await next_event(watch, "starvation_ended")
        assert not event.group.conditions
        assert event.group.lease.owner_session_id == "s"
        session.cancel()
        watch.cancel()


async def next_event(watch: Any, kind: str) -> pb.GroupEvent:
    while (event := await watch.read()).kind != kind:
        pass
    return event
