"""Agents of the contract without our extensions: what they cannot say is not guessed."""

import asyncio
from pathlib import Path

from link_inbox import N1, Inbox, linked, restore, snapshot
from orchestrator.agents.fake import Behaviour, FakeAgent
from orchestrator.agents.target import AgentTarget, LinkSettings
from orchestrator.agents.wire import observed_without_groups
from orchestrator.core.events import (
    AgentCallFailed,
    ContextChanged,
    NodeDisconnected,
    NodeObserved,
    OperationEnded,
)
from orchestrator.core.nodes import is_unexplained
from orchestrator.core.types import AcceleratorId, ContextState, ContextView, GroupId
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

QUICK_POLLS = LinkSettings(call_timeout_s=0.5, poll_first_s=0.005, poll_last_s=0.02, reconnect_last_s=0.05)


def old() -> FakeAgent:
    return FakeAgent({"GPU-0": ["g"]}, old_contract=True)


async def seen(inbox: Inbox, state: ContextState) -> ContextView:
    while True:
        context = (await inbox.next_of(ContextChanged)).context
        if context.state is state:
            return context


async def test_a_node_of_several_groups_needs_an_agent_that_tells_them_apart(tmp_path: Path) -> None:
    async with linked(old(), tmp_path, settings=QUICK_POLLS, groups=("g", "h")) as (_, inbox):
        lost = await inbox.next_of(NodeDisconnected)
        assert "tells no groups" in lost.reason
        await asyncio.sleep(0)
        assert not [event for event in inbox.rest() if isinstance(event, NodeObserved)]


async def test_a_running_job_that_the_restarted_agent_has_not_found_again_is_not_taken_for_absent(
    tmp_path: Path,
) -> None:
    node = old()
    node.put("a", "g")
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (_, inbox):
        await inbox.next_of(NodeObserved)
        node.put("a", "g", state=pb.JOB_STATE_IDLE)
        assert "started anew" in (await seen(inbox, ContextState.TRANSITIONING)).reason
        node.put("a", "g", state=pb.JOB_STATE_RUNNING)
        await seen(inbox, ContextState.RUNNING)


async def test_a_job_whose_save_was_lost_with_the_agent_may_be_saved(tmp_path: Path) -> None:
    node = old()
    node.put("a", "g")
    node.next("Snapshot", Behaviour(gate=asyncio.Event()))
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a"))
        await node.called("GetOperation")
        node.restarted()
        await inbox.next_of(AgentCallFailed, operation="save-1")
        node.put("a", "g", state=pb.JOB_STATE_IDLE)
        while not is_unexplained((await inbox.next_of(ContextChanged)).context):
            pass


async def test_an_operation_without_end_is_told_as_such_and_its_late_end_too(tmp_path: Path) -> None:
    node = old()
    node.put("a", "g")
    node.put("b", "g", state=pb.JOB_STATE_SAVED)
    gate = asyncio.Event()
    node.next("Snapshot", Behaviour(gate=gate))
    async with linked(node, tmp_path, settings=QUICK_POLLS) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(snapshot("a", timeout_s=0.2))
        pool.perform(restore("b", after="save-1"))
        ends = [await inbox.next_of(OperationEnded), await inbox.next_of(OperationEnded)]
        results = {str(end.operation): end.result for end in ends}
        assert results["save-1"].indeterminate
        assert "0.2 s" in results["save-1"].error
        assert results["load-1"].rolled_back
        gate.set()
        assert (await seen(inbox, ContextState.SAVED)).job == "a"
    assert node.requests("Restore") == []


def test_accelerators_that_the_agent_does_not_tell_are_the_configured_ones() -> None:
    target = AgentTarget(N1, "unix:x", ((GroupId("g"), ("0", "GPU-7")),))
    silent = observed_without_groups(target, pb.StatusResponse(), {}, set())
    assert [(view.accelerator, view.groups) for view in silent.accelerators] == [
        (AcceleratorId("0"), ("g",)),
        (AcceleratorId("GPU-7"), ("g",)),
    ]
    told = pb.StatusResponse(accelerator_statuses=[pb.AcceleratorStatus(id="GPU-6"), pb.AcceleratorStatus(id="GPU-7")])
    speaking = observed_without_groups(target, told, {}, set())
    assert [(view.accelerator, view.groups) for view in speaking.accelerators] == [
        (AcceleratorId("GPU-6"), ("g",)),
        (AcceleratorId("GPU-7"), ("g",)),
    ]
