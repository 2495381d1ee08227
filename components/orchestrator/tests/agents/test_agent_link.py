"""A link shows what its agent says as it happens, survives its silences, and answers every effect exactly once."""

import asyncio
from pathlib import Path

import grpc
import pytest

from link_inbox import N1, G, Inbox, address, kill, linked, lock, restore, snapshot, unlock
from orchestrator.agents.fake import Behaviour, FakeAgent, Outcome
from orchestrator.agents.link import HigherEpoch
from orchestrator.agents.pool import highest_epoch
from orchestrator.agents.target import AgentTarget, LinkSettings
from orchestrator.core.effects import QueryOperation
from orchestrator.core.events import (
    AgentCallFailed,
    ContextChanged,
    ContextGone,
    Locked,
    NodeDisconnected,
    NodeObserved,
    OperationEnded,
    OperationPending,
    OperationUnknown,
    Unlocked,
)
from orchestrator.core.types import (
    AgentErrorKind,
    ContextState,
    ContextView,
    Epoch,
    Fence,
    JobId,
    NodeId,
    OperationId,
    Token,
)
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb


@pytest.fixture(autouse=True, params=[True, False], ids=["orders", "calls"])
def takes_orders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the agents have the stream for orders; nothing else depends on it."""
    monkeypatch.setattr(FakeAgent, "takes_orders", request.param)
    return bool(request.param)


def agent(**options: bool) -> FakeAgent:
    return FakeAgent({"GPU-0": ["g"]}, **options)


async def test_a_stream_tells_everything_first_and_then_every_change(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g", locked=True, state=pb.JOB_STATE_SAVED)
    node.tokens["g"] = 3
    async with linked(node, tmp_path) as (_, inbox):
        seen = await inbox.next_of(NodeObserved)
        assert [(c.job, c.group, c.state, c.locked) for c in seen.contexts] == [("a", "g", ContextState.SAVED, True)]
        assert [(a.accelerator, a.groups) for a in seen.accelerators] == [("GPU-0", ("g",))]
        assert seen.fences == (Fence(G, Token(3), Epoch(5)),)
        node.put("b", "g", pids=[8, 9])
        changed = await inbox.next_of(ContextChanged)
        assert changed.node == N1
        assert (changed.context.job, changed.context.pids) == ("b", {8, 9})
        node.remove("a", "g")
        assert await inbox.next_of(ContextGone) == ContextGone(N1, JobId("a"), G)


async def test_every_effect_reaches_the_agent_with_its_token_and_epoch(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(lock("a"))
        await inbox.next_of(Locked, operation="lock-1")
        pool.perform(snapshot("a"))
        assert (await inbox.next_of(OperationEnded, operation="save-1")).result.complete
        pool.perform(restore("a"))
        assert (await inbox.next_of(OperationEnded, operation="load-1")).result.complete
        assert node.contexts["a", "g"].locked
        pool.perform(unlock("a"))
        await inbox.next_of(Unlocked, operation="unlock-1")
        for method in ("Lock", "Snapshot", "Restore", "Unlock"):
            [request] = node.requests(method)
            assert (request.fencing_token, request.leader_epoch) == (7, 5)
    assert node.violations == []


async def test_save_and_restore_are_sent_at_once_and_the_agent_chains_them(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED, locked=True)
    gate = asyncio.Event()
    node.next("Snapshot", Behaviour(gate=gate))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        await node.called("Restore")
        assert node.contexts["b", "g"].state == pb.JOB_STATE_SAVED
        gate.set()
        await inbox.next_of(OperationEnded, operation="save-1")
        await inbox.next_of(OperationEnded, operation="load-1")
        assert node.contexts["b", "g"].state == pb.JOB_STATE_RUNNING


async def test_events_that_come_together_are_posted_in_their_order(tmp_path: Path) -> None:
    node = agent()
    async with linked(node, tmp_path) as (_, inbox):
        await inbox.next_of(NodeObserved)
        for job in "abc":
            node.put(job, "g")
        node.remove("a", "g")
        assert [(await inbox.next_of(ContextChanged)).context.job for _ in "abc"] == ["a", "b", "c"]
        assert (await inbox.next_of(ContextGone)).job == "a"
        assert node.messages_total == 1


async def test_a_restore_goes_along_with_the_snapshot_that_it_follows(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        assert (await inbox.next_of(OperationEnded, operation="load-1")).result.complete
        [request] = node.requests("Snapshot")
        assert request.then_restore.after_operation_id == "save-1"
        assert (request.then_restore.fencing_token, request.then_restore.leader_epoch) == (7, 5)
        assert node.calls_total == len(["Watch", "Snapshot", "Restore"])
        assert node.contexts["b", "g"].locked


async def test_an_agent_that_takes_no_restore_along_is_asked_for_it(tmp_path: Path) -> None:
    node = agent()
    node.takes_restores_along = False
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        assert (await inbox.next_of(OperationEnded, operation="load-1")).result.complete
        assert [request.operation_id for request in node.requests("Restore")] == ["load-1"]


async def test_what_fails_the_snapshots_call_fails_the_restore_that_goes_along(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    node.next("Snapshot", Behaviour(code=grpc.StatusCode.FAILED_PRECONDITION))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        failed = [await inbox.next_of(AgentCallFailed), await inbox.next_of(AgentCallFailed)]
        assert [(event.operation, event.kind) for event in failed] == [
            ("save-1", AgentErrorKind.STALE), ("load-1", AgentErrorKind.STALE)]
        assert node.requests("Restore") == []


async def test_a_restore_whose_save_failed_fails_with_it(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED, locked=True)
    node.next("Snapshot", Behaviour(outcome=Outcome.ROLLED_BACK))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        saved = await inbox.next_of(OperationEnded, operation="save-1")
        loaded = await inbox.next_of(OperationEnded, operation="load-1")
        assert (saved.result.complete, saved.result.rolled_back) == (False, True)
        assert (loaded.result.complete, loaded.result.rolled_back) == (False, True)


@pytest.mark.parametrize(
    ("outcome", "rolled_back", "indeterminate", "gone"),
    [
        (Outcome.ROLLED_BACK, True, False, False),
        (Outcome.FAILED, False, False, False),
        (Outcome.INDETERMINATE, False, True, False),
        (Outcome.GONE, False, False, True),
    ],
)
async def test_how_an_operation_failed_is_told(
    tmp_path: Path, outcome: Outcome, rolled_back: bool, indeterminate: bool, gone: bool
) -> None:
    node = agent()
    node.put("a", "g")
    node.next("Snapshot", Behaviour(outcome=outcome))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        result = (await inbox.next_of(OperationEnded)).result
        assert not result.complete
        assert (result.rolled_back, result.indeterminate, result.gone) == (rolled_back, indeterminate, gone)
        assert result.error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, AgentErrorKind.UNANSWERED),
        (grpc.StatusCode.CANCELLED, AgentErrorKind.UNANSWERED),
        (grpc.StatusCode.FAILED_PRECONDITION, AgentErrorKind.STALE),
        (grpc.StatusCode.NOT_FOUND, AgentErrorKind.GONE),
        (grpc.StatusCode.UNIMPLEMENTED, AgentErrorKind.UNSUPPORTED),
        (grpc.StatusCode.ABORTED, AgentErrorKind.REFUSED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, AgentErrorKind.REFUSED),
    ],
)
async def test_a_refused_call_says_which_kind_of_no_it_was(
    tmp_path: Path, code: grpc.StatusCode, kind: AgentErrorKind
) -> None:
    node = agent()
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        for method, effect in (("Lock", lock("a")), ("Unlock", unlock("a")), ("Snapshot", snapshot("a")),
                               ("Restore", restore("a"))):
            node.next(method, Behaviour(code=code))
            pool.perform(effect)
            failed = await inbox.next_of(AgentCallFailed)
            assert (failed.operation, failed.kind) == (effect.operation, kind)
            assert code.name in failed.error


async def test_a_stale_token_is_refused_by_the_agent_and_told(tmp_path: Path) -> None:
    node = agent()
    node.tokens["g"] = 9
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(lock("a"))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.STALE


async def test_an_agent_that_hangs_costs_a_deadline_and_shows_as_disconnected(tmp_path: Path) -> None:
    node = agent()
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        for method in ("Lock", "Status", "Watch"):
            node.always(method, Behaviour(hang=True))
        pool.perform(lock("a", timeout_s=0.1))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNANSWERED
        await inbox.next_of(NodeDisconnected)
        for method in ("Lock", "Status", "Watch"):
            node.always(method, None)
        await inbox.next_of(NodeObserved)
        pool.perform(lock("a", "lock-2"))
        await inbox.next_of(Locked)


async def test_one_slow_call_does_not_break_the_stream(tmp_path: Path) -> None:
    node = agent()
    node.next("Lock", Behaviour(hang=True))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(lock("a", timeout_s=0.1))
        await inbox.next_of(AgentCallFailed)
        await node.called("Status")
        node.put("b", "g")
        await inbox.next_of(ContextChanged)
        assert len(node.requests("Watch")) == 1


async def test_after_a_broken_stream_everything_is_told_again(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    async with linked(node, tmp_path) as (_, inbox):
        await inbox.next_of(NodeObserved)
        node.break_streams()
        node.contexts["a", "g"].state = pb.JOB_STATE_SAVED  # nobody is told of this
        await inbox.next_of(NodeDisconnected)
        seen = await inbox.next_of(NodeObserved)
        assert [c.state for c in seen.contexts] == [ContextState.SAVED]


async def test_an_agent_that_restarts_is_found_again(tmp_path: Path) -> None:
    node = agent()
    async with linked(node, tmp_path) as (pool, inbox):
        first = await inbox.next_of(NodeObserved)
        await node.stop()
        await inbox.next_of(NodeDisconnected)
        pool.perform(lock("a"))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNANSWERED
        node.restarted()
        await node.start(address(tmp_path))
        assert (await inbox.next_of(NodeObserved)).incarnation != first.incarnation


async def test_a_silence_is_told_once_however_many_attempts_fail(tmp_path: Path) -> None:
    node = agent()
    async with linked(node, tmp_path) as (_, inbox):
        await inbox.next_of(NodeObserved)
        node.always("Watch", Behaviour(code=grpc.StatusCode.UNAVAILABLE))
        node.break_streams()
        await node.called("Watch", 5)
        assert [type(event) for event in inbox.rest()] == [NodeDisconnected]
        node.always("Watch", None)
        await inbox.next_of(NodeObserved)


async def test_an_operation_can_be_asked_for(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    gate = asyncio.Event()
    node.next("Snapshot", Behaviour(gate=gate))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        await node.called("Snapshot")
        pool.perform(QueryOperation(N1, OperationId("save-1")))
        await inbox.next_of(OperationPending, operation="save-1")
        gate.set()
        await inbox.next_of(OperationEnded)
        pool.perform(QueryOperation(N1, OperationId("save-1")))
        assert (await inbox.next_of(OperationEnded)).result.complete
        pool.perform(QueryOperation(N1, OperationId("other")))
        await inbox.next_of(OperationUnknown, operation="other")


async def test_an_effect_for_a_node_that_is_not_there_is_answered(tmp_path: Path) -> None:
    async with linked(agent(), tmp_path, is_started=False) as (pool, inbox):
        pool.perform(lock("a"))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNANSWERED
        pool.forget(N1)
        pool.perform(lock("a", "lock-2"))
        assert (await inbox.next_of(AgentCallFailed, operation="lock-2")).kind is AgentErrorKind.UNANSWERED


async def test_a_call_under_way_when_its_node_is_forgotten_is_answered(tmp_path: Path) -> None:
    node = agent()
    node.always("Lock", Behaviour(hang=True))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(lock("a", timeout_s=5.0))
        await node.called("Lock")
        pool.forget(N1)
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNANSWERED


async def test_a_kill_is_fenced_and_ends_one_context(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(kill("a"))
        assert await inbox.next_of(ContextGone) == ContextGone(N1, JobId("a"), G)
        [request] = node.requests("Kill")
        assert (request.fencing_token, request.leader_epoch, request.reason) == (7, 5, "it cannot be saved")
        assert set(node.contexts) == {("b", "g")}
        pool.perform(kill("a", "again"))
        assert (await inbox.next_of(AgentCallFailed, operation="again")).kind is AgentErrorKind.GONE
        pool.perform(kill("b", "late", token=6))
        assert (await inbox.next_of(AgentCallFailed, operation="late")).kind is AgentErrorKind.STALE
        assert set(node.contexts) == {("b", "g")}


async def test_an_agent_that_cannot_kill_says_so(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.next("Kill", Behaviour(code=grpc.StatusCode.UNIMPLEMENTED))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(kill("a"))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNSUPPORTED
        assert ("a", "g") in node.contexts


async def test_a_kill_that_is_not_answered_is_told_as_such(tmp_path: Path) -> None:
    node = agent()
    node.put("a", "g")
    node.next("Kill", Behaviour(hang=True))
    async with linked(node, tmp_path) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(kill("a"))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNANSWERED


async def test_a_leader_with_a_lower_epoch_stops(tmp_path: Path) -> None:
    node = agent()
    node.epoch = 6
    with pytest.raises(ExceptionGroup) as stopped:
        async with linked(node, tmp_path) as (_, inbox):
            await inbox.next_of(NodeObserved)
    assert stopped.group_contains(HigherEpoch)


async def test_a_new_leader_takes_the_stream_from_the_old_one(tmp_path: Path) -> None:
    node = agent()
    with pytest.raises(ExceptionGroup) as stopped:
        await follow_while_another_leads(node, tmp_path)
    assert stopped.group_contains(HigherEpoch)


async def follow_while_another_leads(node: FakeAgent, folder: Path) -> None:
    async with linked(node, folder) as (_, inbox):
        await inbox.next_of(NodeObserved)
        async with grpc.aio.insecure_channel(address(folder)) as channel:
            stream = channel.unary_stream(
                "/snapshot_agent.v1alpha1.SnapshotAgentService/Watch",
                request_serializer=pb.WatchRequest.SerializeToString,
                response_deserializer=pb.AgentEvent.FromString)(pb.WatchRequest(leader_epoch=6))
            await stream.read()
            await inbox.next_of(NodeDisconnected)
            await inbox.next_of(NodeObserved)


async def test_the_highest_epoch_is_asked_of_all_agents_that_answer(tmp_path: Path) -> None:
    quick, hung = agent(), agent()
    quick.epoch = 12
    hung.always("Status", Behaviour(hang=True))
    addresses = [f"unix:{tmp_path}/{name}" for name in ("quick", "hung", "absent")]
    await quick.start(addresses[0])
    await hung.start(addresses[1])
    targets = [AgentTarget(NodeId(a), a, ()) for a in addresses]
    assert await highest_epoch(targets, 0.3) == 12
    assert await highest_epoch([], 0.3) == 0
    await quick.stop()
    await hung.stop()


async def test_a_port_that_accepts_and_never_speaks_shows_as_disconnected(tmp_path: Path) -> None:
    """Row 40, one layer below: not even HTTP/2 is spoken."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(writer)

    async with await asyncio.start_unix_server(accept, f"{tmp_path}/agent.sock"):
        async with linked(agent(), tmp_path, is_started=False) as (_, inbox):
            writer = await accepted.get()
            await inbox.next_of(NodeDisconnected)
        writer.close()
        await writer.wait_closed()


def old(**options: bool) -> FakeAgent:
    return FakeAgent({"GPU-0": ["g"]}, old_contract=True, **options)


QUICK_POLLS = LinkSettings(call_timeout_s=0.5, poll_first_s=0.005, poll_last_s=0.02, reconnect_last_s=0.05)


async def seen_context(inbox: Inbox, state: ContextState, locked: bool) -> ContextView:
    while True:
        context = (await inbox.next_of(ContextChanged)).context
        if (context.state, context.locked) == (state, locked):
            return context


async def test_an_agent_of_the_old_contract_is_polled_and_looks_like_a_new_one(tmp_path: Path) -> None:
    node = old()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (pool, inbox):
        seen = await inbox.next_of(NodeObserved)
        assert {(c.job, c.group) for c in seen.contexts} == {("a", "g"), ("b", "g")}
        assert [a.groups for a in seen.accelerators] == [("g",)]
        pool.perform(lock("a"))
        await inbox.next_of(Locked)
        gate = asyncio.Event()
        node.next("Snapshot", Behaviour(gate=gate))
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        await node.called("GetOperation", 3)
        pool.perform(QueryOperation(N1, OperationId("save-1")))
        await inbox.next_of(OperationPending)
        assert node.requests("Restore") == []
        gate.set()
        assert (await inbox.next_of(OperationEnded, operation="save-1")).result.complete
        assert (await seen_context(inbox, ContextState.RUNNING, locked=True)).job == "b"
        assert (await inbox.next_of(OperationEnded, operation="load-1")).result.complete
        pool.perform(unlock("b"))
        await inbox.next_of(Unlocked)
        await seen_context(inbox, ContextState.RUNNING, locked=False)
        node.remove("a", "g")
        await inbox.next_of(ContextGone, job="a")
    assert not any(request.ListFields()[2:] for request in node.requests("Snapshot"))


async def test_an_old_agent_cannot_kill(tmp_path: Path) -> None:
    node = old()
    node.put("a", "g")
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(kill("a"))
        assert (await inbox.next_of(AgentCallFailed)).kind is AgentErrorKind.UNSUPPORTED
        assert ("a", "g") in node.contexts


async def test_an_old_agents_failed_save_fails_the_restore_behind_it(tmp_path: Path) -> None:
    node = old()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    node.next("Snapshot", Behaviour(outcome=Outcome.FAILED))
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        pool.perform(restore("b", after="save-1"))
        ends = [await inbox.next_of(OperationEnded), await inbox.next_of(OperationEnded)]
        assert {end.operation for end in ends} == {"save-1", "load-1"}
        assert not any(end.result.complete for end in ends)
        assert node.requests("Restore") == []


async def test_an_old_agent_that_restarts_in_an_operation_is_no_endless_question(tmp_path: Path) -> None:
    node = old()
    node.put("a", "g")
    node.next("Snapshot", Behaviour(gate=asyncio.Event()))
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        await node.called("GetOperation")
        node.restarted()
        failed = await inbox.next_of(AgentCallFailed, operation="save-1")
        assert failed.kind is AgentErrorKind.UNANSWERED
        pool.perform(QueryOperation(N1, OperationId("save-1")))
        await inbox.next_of(OperationUnknown)


async def test_an_old_agents_silence_is_told_and_its_return_too(tmp_path: Path) -> None:
    node = old()
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (_, inbox):
        await inbox.next_of(NodeObserved)
        node.always("Status", Behaviour(hang=True))
        await inbox.next_of(NodeDisconnected)
        node.always("Status", None)
        await inbox.next_of(NodeObserved)
