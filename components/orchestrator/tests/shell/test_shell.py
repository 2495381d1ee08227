"""The event loop around the core: order, timers, and that one failure stops everything."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.api.wire import Clock
from orchestrator.core.effects import AnswerSession, Effect, Record, StartSnapshot, StepDown, WakeAt
from orchestrator.core.events import Event, ReadFailed, Recorded, Started, Woken
from orchestrator.core.types import (
    CallId,
    Epoch,
    GroupId,
    GroupRecord,
    JobId,
    NodeId,
    OperationId,
    RecordId,
    SessionId,
    Token,
)
from orchestrator.shell import Shell, SteppedDown

LIMIT_S = 5.0
CLOCK = Clock(time.monotonic, time.time)
RECORD = Record(GroupRecord(group=GroupId("g"), version=RecordId(1)))
SNAPSHOT = StartSnapshot(
    node=NodeId("n"), operation=OperationId("o"), group=GroupId("g"), job=JobId("j"), token=Token(1), epoch=Epoch(1),
    timeout_s=1.0)
ANSWER = AnswerSession(CallId(1), SessionId("s"), 1.0)


class ScriptedCore:
    """Answers each kind of event with the effects that the test names."""

    def __init__(self, script: dict[type[Any], list[Effect]]) -> None:
        self.script = script
        self.handled: list[Event] = []
        self.moving: tuple[GroupId, ...] = ()
        self.woken = asyncio.Event()

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.handled.append(event)
        if isinstance(event, Woken):
            self.woken.set()
        return self.script.get(type(event), [])

    def unsettled(self) -> tuple[GroupId, ...]:
        return self.moving


class Edge:
    """Notes what it is told to do; may post an event meanwhile."""

    def __init__(self, done: list[Any], then: Callable[[], None] = lambda: None) -> None:
        self.done, self.then = done, then

    def perform(self, effect: Any) -> None:
        self.done.append(effect)
        self.then()


def shell(core: ScriptedCore, writer: Any = None, agents: Any = None, service: Any = None) -> Shell:
    made = Shell(core, CLOCK)  # type: ignore[arg-type]
    made.connect(writer, agents, service)
    return made


async def test_effects_are_started_in_their_order_and_events_of_theirs_come_after() -> None:
    done: list[Any] = []
    core = ScriptedCore({Started: [RECORD, SNAPSHOT], Recorded: [ANSWER]})
    made = shell(core)
    recorded = Recorded(GroupId("g"), RecordId(1))
    made.connect(Edge(done, lambda: made.post(recorded)), Edge(done), Edge(done))  # type: ignore[arg-type]
    made.post(Started(Epoch(1)))
    assert done == [RECORD, SNAPSHOT, ANSWER]
    assert core.handled == [Started(Epoch(1)), recorded]


async def test_the_newest_wish_to_be_woken_replaces_the_older() -> None:
    now = time.monotonic()
    core = ScriptedCore({Started: [WakeAt(now + 0.01)], ReadFailed: [WakeAt(now + 0.05)]})
    made = shell(core)
    made.post(Started(Epoch(1)))
    made.post(ReadFailed(GroupId("g")))
    async with asyncio.timeout(LIMIT_S):
        await core.woken.wait()
    assert time.monotonic() >= now + 0.05 - 0.002
    assert core.handled.count(Woken()) == 1
    await made.close()


async def test_a_core_that_fails_stops_everything_and_handles_nothing_more() -> None:
    core = ScriptedCore({Started: [RECORD]})
    made = shell(core)

    def fail() -> None:
        raise RuntimeError("broken")

    made.connect(Edge([], fail), Edge([]), Edge([]))  # type: ignore[arg-type]
    made.post(Started(Epoch(1)))
    made.post(Woken())
    with pytest.raises(RuntimeError, match="broken"):
        await made.failure()
    assert core.handled == [Started(Epoch(1))]


async def test_a_task_that_fails_stops_everything() -> None:
    made = shell(ScriptedCore({}))

    async def fail() -> None:
        raise RuntimeError("broken link")

    made.spawn(fail(), "link")
    with pytest.raises(RuntimeError, match="broken link"):
        async with asyncio.timeout(LIMIT_S):
            await made.failure()
    await made.close()


async def test_stepping_down_stops_everything_with_the_reason() -> None:
    made = shell(ScriptedCore({Started: [StepDown("somebody else leads")]}))
    made.post(Started(Epoch(1)))
    with pytest.raises(SteppedDown, match="somebody else leads"):
        await made.failure()


async def test_settling_waits_for_what_moves_and_no_longer_than_it_may() -> None:
    core = ScriptedCore({})
    made = shell(core)
    assert await made.settle(LIMIT_S)
    core.moving = (GroupId("g"),)
    assert not await made.settle(0.01)
    settling = asyncio.create_task(made.settle(LIMIT_S))
    await asyncio.sleep(0)
    core.moving = ()
    made.post(Woken())
    assert await settling


async def test_closing_ends_every_task() -> None:
    made = shell(ScriptedCore({}))
    task = made.spawn(asyncio.Event().wait(), "forever")
    await made.close()
    assert task.cancelled()
