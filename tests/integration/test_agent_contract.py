"""What the orchestrator builds on in an agent, asked of both: the real one on a GPU mock, and the fake of its tests.

A difference between the two would make the orchestrator's own tests prove nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from machine import DeviceProcess, Node
from orchestrator.agents.fake import FakeAgent
from orchestrator.agents.pool import AgentPool
from orchestrator.agents.target import AgentTarget, LinkSettings
from orchestrator.core.effects import LockContext, QueryOperation, StartRestore, StartSnapshot, UnlockContext
from orchestrator.core.events import (
    AgentCallFailed,
    ContextChanged,
    ContextGone,
    Event,
    Locked,
    NodeDisconnected,
    NodeObserved,
    OperationEnded,
    OperationUnknown,
    Together,
    Unlocked,
)
from orchestrator.core.types import (
    AgentErrorKind,
    ContextState,
    ContextView,
    Epoch,
    GroupId,
    JobId,
    NodeId,
    OperationId,
    Token,
)
from timeslice.snapshot_agent import WorkloadHandle, register_workload

E = TypeVar("E")
N1, G = NodeId("n1"), GroupId("g")
LIMIT_S = 20.0
EPOCH = 5


class AgentUnderTest(Protocol):
    """An agent with one accelerator, of group g, and jobs that come and go on it."""

    address: str

    async def start(self) -> None: ...

    async def restart(self) -> None: ...

    async def stop(self) -> None: ...

    async def appear(self, job: str) -> None: ...

    async def end(self, job: str) -> None: ...


class Real:
    """The product's agent, and a process per job with memory on the mock."""

    def __init__(self, folder: Path) -> None:
        self._node = Node("n1", folder / "n1", "1x64MiB", {"g": "0"}, [])
        self.address = self._node.address
        self._jobs: dict[str, tuple[DeviceProcess, WorkloadHandle]] = {}

    async def start(self) -> None:
        await asyncio.to_thread(self._node.agent.start)

    async def restart(self) -> None:
        await asyncio.to_thread(self._node.agent.kill)
        await self.start()

    async def stop(self) -> None:
        for job in list(self._jobs):
            await self.end(job)
        await asyncio.to_thread(self._node.agent.stop)

    async def appear(self, job: str) -> None:
        process = await asyncio.to_thread(DeviceProcess, self._node)
        await asyncio.to_thread(process.call, "alloc", "weights", 8 << 20, 1)
        handle = await asyncio.to_thread(lambda: register_workload(self.address, job, "g", pids=[process.pid]))
        self._jobs[job] = (process, handle)

    async def end(self, job: str) -> None:
        process, handle = self._jobs.pop(job)
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(handle.close)


class Callbacks(Real):
    """The product's agent, and jobs that save themselves, from this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._handles: dict[str, WorkloadHandle] = {}
        self.asked: list[tuple[str, str]] = []

    async def stop(self) -> None:
        for job in list(self._handles):
            await self.end(job)
        await super().stop()

    async def appear(self, job: str) -> None:
        self._handles[job] = await asyncio.to_thread(
            lambda: register_workload(
                self.address,
                job,
                "g",
                on_snapshot=lambda mode, tags: self.asked.append((f"save by {mode}", job)),
                on_restore=lambda tags: self.asked.append(("restore", job)),
                default_mode="discard",
                tags=["weights"],
            )
        )

    async def end(self, job: str) -> None:
        await asyncio.to_thread(self._handles.pop(job).close)


class Fake:
    """The fake, told what processes would do."""

    def __init__(self, folder: Path) -> None:
        self._agent = FakeAgent({"GPU-0": ["g"]})
        self.address = f"unix:{folder}/agent.sock"

    async def start(self) -> None:
        await self._agent.start(self.address)

    async def restart(self) -> None:
        await self._agent.stop()
        self._agent.restarted()
        await self.start()

    async def stop(self) -> None:
        await self._agent.stop()

    async def appear(self, job: str) -> None:
        self._agent.put(job, "g")

    async def end(self, job: str) -> None:
        self._agent.remove(job, "g")


class Link:
    """An orchestrator's connection to the agent: effects out, events in."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.pool: AgentPool
        self._latest: dict[JobId, ContextView] = {}

    def post(self, event: Event) -> None:
        """Take an event; those that were pushed together one by one."""
        for one in event.events if isinstance(event, Together) else (event,):
            if isinstance(one, ContextChanged):
                self._latest[one.context.job] = one.context
            self.events.put_nowait(one)

    async def next_of(self, kind: type[E], **fields: Any) -> E:
        """The next event of this kind with these fields; events before it are dropped."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                event = await self.events.get()
                if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                    return event

    async def shows(self, job: str, state: ContextState, locked: bool) -> ContextView:
        """Wait until the agent pushes this of a job's context, unless it is what it pushed last."""
        context = self._latest.get(JobId(job))
        while context is None or (context.job, context.group, context.state, context.locked) != (job, G, state, locked):
            context = (await self.next_of(ContextChanged)).context
        return context

    def told(self, job: str) -> tuple[ContextState, bool]:
        """What the agent pushed last of a job's context: its state, and whether it is locked."""
        context = self._latest[JobId(job)]
        return context.state, context.locked

    async def lock(self, job: str) -> None:
        self.ask_lock(job)
        await self.next_of(Locked, operation=f"lock-{job}")

    def ask_lock(self, job: str, token: int = 7) -> None:
        self.pool.perform(
            LockContext(
                node=N1,
                operation=OperationId(f"lock-{job}"),
                group=G,
                job=JobId(job),
                token=Token(token),
                epoch=Epoch(EPOCH),
                timeout_s=5.0,
            )
        )

    async def unlock(self, job: str) -> None:
        self.pool.perform(
            UnlockContext(
                node=N1,
                operation=OperationId(f"unlock-{job}"),
                group=G,
                job=JobId(job),
                token=Token(7),
                epoch=Epoch(EPOCH),
                timeout_s=5.0,
            )
        )
        await self.next_of(Unlocked, operation=f"unlock-{job}")

    def save(self, job: str, operation: str, *, token: int = 7, epoch: int = EPOCH) -> None:
        self.pool.perform(
            StartSnapshot(
                node=N1,
                operation=OperationId(operation),
                group=G,
                job=JobId(job),
                token=Token(token),
                epoch=Epoch(epoch),
                timeout_s=10.0,
            )
        )

    def load(self, job: str, operation: str, after: str | None = None, *, leave_locked: bool = True) -> None:
        self.pool.perform(
            StartRestore(
                node=N1,
                operation=OperationId(operation),
                group=G,
                job=JobId(job),
                token=Token(7),
                epoch=Epoch(EPOCH),
                timeout_s=10.0,
                after=OperationId(after) if after else None,
                leave_locked=leave_locked,
            )
        )

    async def completes(self, operation: str) -> None:
        result = (await self.next_of(OperationEnded, operation=operation)).result
        assert result.complete, result.error


@asynccontextmanager
async def linked(agent: AgentUnderTest) -> AsyncIterator[tuple[Link, NodeObserved]]:
    """A link that has seen the agent's whole state, and that state."""
    link = Link()
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work, name=name))
        return tasks[-1]

    link.pool = AgentPool(Epoch(EPOCH), LinkSettings(), link.post, spawn)
    link.pool.set_targets([AgentTarget(N1, agent.address, ((G, ()),))])
    try:
        yield link, await link.next_of(NodeObserved)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(params=[Fake, Real], ids=["fake", "real"])
async def agent(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentUnderTest]:
    under_test: AgentUnderTest = request.param(tmp_path)
    await under_test.start()
    yield under_test
    await under_test.stop()


whoever_saves = pytest.mark.parametrize(
    "agent", [Fake, Real, Callbacks], indirect=True, ids=["fake", "real", "callbacks"]
)


@pytest.mark.parametrize("agent", [Callbacks], indirect=True, ids=["callbacks"])
async def test_a_job_of_callbacks_is_never_locked_and_tells_what_it_dropped(agent: Callbacks) -> None:
    async with linked(agent) as (link, _):
        await agent.appear("a")
        shown = await link.shows("a", ContextState.RUNNING, locked=False)
        assert (shown.backend, shown.can_be_locked, shown.pids) == ("app_channel", False, {os.getpid()})
        await link.lock("a")
        link.save("a", "save-1")
        await link.completes("save-1")
        saved = await link.shows("a", ContextState.SAVED, locked=False)
        assert saved.discarded_tags == ("weights",)
        link.load("a", "load-1")
        await link.completes("load-1")
        back = await link.shows("a", ContextState.RUNNING, locked=False)
        assert back.discarded_tags == ("weights",)
        await link.unlock("a")
        assert agent.asked == [("save by discard", "a"), ("restore", "a")]
        await agent.end("a")
        await link.next_of(ContextGone, job="a", group=G)


async def test_a_stream_begins_with_everything_and_goes_on_with_every_change(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, first):
        assert first.contexts == ()
        [accelerator] = first.accelerators
        assert accelerator.groups == (G,)
        assert accelerator.total_bytes > 0
        assert first.incarnation
        await agent.appear("a")
        context = await link.shows("a", ContextState.RUNNING, locked=False)
        assert context.pids
        assert [usage.accelerator for usage in context.usage] == [accelerator.accelerator]
        await agent.end("a")
        await link.next_of(ContextGone, job="a", group=G)


async def test_a_context_is_locked_saved_restored_and_unlocked_and_each_step_is_pushed(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        await agent.appear("a")
        await link.shows("a", ContextState.RUNNING, locked=False)
        link.pool.perform(
            LockContext(
                node=N1,
                operation=OperationId("l"),
                group=G,
                job=JobId("a"),
                token=Token(7),
                epoch=Epoch(EPOCH),
                timeout_s=5.0,
            )
        )
        await link.shows("a", ContextState.RUNNING, locked=True)
        link.save("a", "save-1")
        await link.completes("save-1")
        saved = await link.shows("a", ContextState.SAVED, locked=False)
        assert saved.host_bytes > 0
        link.load("a", "load-1")
        await link.completes("load-1")
        await link.shows("a", ContextState.RUNNING, locked=True)
        link.pool.perform(
            UnlockContext(
                node=N1,
                operation=OperationId("u"),
                group=G,
                job=JobId("a"),
                token=Token(7),
                epoch=Epoch(EPOCH),
                timeout_s=5.0,
            )
        )
        await link.shows("a", ContextState.RUNNING, locked=False)


@whoever_saves
async def test_a_save_and_the_restore_behind_it_are_sent_at_once(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        for job in "ab":
            await agent.appear(job)
            await link.lock(job)
        link.save("b", "save-b")
        await link.completes("save-b")
        link.save("a", "save-a")
        link.load("b", "load-b", after="save-a")
        await link.completes("save-a")
        await link.completes("load-b")


@whoever_saves
async def test_a_restore_that_is_not_to_leave_its_job_locked_unlocks_it(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        await agent.appear("b")
        await link.shows("b", ContextState.RUNNING, locked=False)
        link.save("b", "save-1")
        await link.shows("b", ContextState.SAVED, locked=False)
        await agent.appear("a")
        await link.shows("a", ContextState.RUNNING, locked=False)
        link.save("a", "save-2")
        link.load("b", "load-1", after="save-2", leave_locked=False)
        await link.completes("save-2")
        await link.completes("load-1")
        assert link.told("b") == (ContextState.RUNNING, False), "told before the end"


async def test_a_restore_unlocks_nobody_for_a_token_that_is_over(agent: AgentUnderTest) -> None:
    """Whether the newer token comes before the restore, before its unlock or after that."""
    async with linked(agent) as (link, _):
        await agent.appear("b")
        await link.shows("b", ContextState.RUNNING, locked=False)
        link.save("b", "save-1")
        await link.shows("b", ContextState.SAVED, locked=False)
        link.load("b", "load-1", leave_locked=False)
        link.ask_lock("b", token=8)
        end: Event | None = None
        is_locked = False
        async with asyncio.timeout(LIMIT_S):
            while end is None or not is_locked:
                event = await link.events.get()
                is_locked |= isinstance(event, Locked)
                if isinstance(event, OperationEnded | AgentCallFailed) and event.operation == "load-1":
                    end = event
        if isinstance(end, OperationEnded):
            assert end.result.complete
            await link.shows("b", ContextState.RUNNING, locked=True)
        else:
            assert end.kind is AgentErrorKind.STALE
            assert link.told("b")[0] is ContextState.SAVED


async def test_a_restore_behind_an_unknown_operation_fails_and_changes_nothing(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        await agent.appear("a")
        await link.lock("a")
        link.save("a", "save-a")
        await link.completes("save-a")
        link.load("a", "load-a", after="never sent")
        result = (await link.next_of(OperationEnded, operation="load-a")).result
        assert (result.complete, result.rolled_back, result.gone) == (False, True, False)


async def test_what_is_asked_of_an_absent_context_succeeds(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        await link.lock("nobody")
        await link.unlock("nobody")
        link.save("nobody", "save-n")
        await link.next_of(OperationEnded, operation="save-n")
        link.load("nobody", "load-n")
        await link.next_of(OperationEnded, operation="load-n")


@whoever_saves
async def test_stale_tokens_and_epochs_are_refused_and_the_highest_outlive_the_agent(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        await agent.appear("a")
        await link.lock("a")
        link.save("a", "stale-token", token=6)
        assert (await link.next_of(AgentCallFailed, operation="stale-token")).kind is AgentErrorKind.STALE
        link.save("a", "stale-epoch", epoch=EPOCH - 1)
        assert (await link.next_of(AgentCallFailed, operation="stale-epoch")).kind is AgentErrorKind.STALE
        await agent.restart()
        await link.next_of(NodeDisconnected)
        again = await link.next_of(NodeObserved)
        [fence] = [fence for fence in again.fences if fence.group == G]
        assert (fence.token, fence.epoch) == (7, EPOCH)


@whoever_saves
async def test_an_operation_id_that_comes_twice_starts_nothing_new(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        await agent.appear("a")
        await link.lock("a")
        link.save("a", "save-a")
        await link.completes("save-a")
        link.load("a", "load-a")
        await link.completes("load-a")
        link.save("a", "save-a")
        link.pool.perform(QueryOperation(N1, OperationId("save-a")))
        await link.completes("save-a")
        link.save("a", "save-b")
        await link.completes("save-b")


async def test_an_operation_that_the_agent_does_not_know_is_said_to_be_unknown(agent: AgentUnderTest) -> None:
    async with linked(agent) as (link, _):
        link.pool.perform(QueryOperation(N1, OperationId("other")))
        await link.next_of(OperationUnknown, operation="other")
