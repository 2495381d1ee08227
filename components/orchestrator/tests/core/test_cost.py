"""How much a handoff costs must not grow with who else waits: counted in steps of the interpreter, not in time."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from orchestrator.core.effects import Effect
from orchestrator.core.events import ContextChanged, Event, OperationEnded, Together
from orchestrator.core.types import ContextState, GroupId, JobId, OperationResult
from world import World


class CountingWorld(World):
    """Counts the bytecodes that the core executes."""

    steps = 0

    def handle(self, event: Event) -> None:
        core = self.core.handle

        def counted(event: Event, now: float) -> list[Effect]:
            before = sys.gettrace()
            sys.settrace(self._trace_calls)
            try:
                return core(event, now)
            finally:
                sys.settrace(before)

        self.core.handle = counted  # type: ignore[method-assign]
        try:
            super().handle(event)
        finally:
            del self.core.handle

    def _trace_calls(self, frame: FrameType, kind: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if kind == "opcode":
            self.steps += 1
        return self._trace_calls


def handoff_steps(waiters: int) -> int:
    """What the core does for two handoffs in the middle of a queue of so many jobs, each with a saved context."""
    world = CountingWorld()
    world.settle()
    jobs = [f"j{number:04}" for number in range(waiters + 1)]
    for job in jobs:
        world.lease(world.ask(job))
        world.appear(job)
        world.give(job)
    holder, *others = jobs
    world.ask(holder)
    calls = [world.ask(job) for job in others]
    before = world.steps
    world.give(holder)
    world.give(others[0])
    assert world.lease(calls[1]) is not None
    return world.steps - before


def test_a_handoff_costs_the_same_with_ten_waiters_and_with_a_hundred() -> None:
    few, many = handoff_steps(10), handoff_steps(100)
    assert few > 1000
    assert many == pytest.approx(few, rel=0.1)


def test_what_happens_at_once_is_decided_on_once() -> None:
    """An operation's end and its context's state, as agents push them, apart and together."""
    decisions = []
    for is_together in (False, True):
        world = CountingWorld(nodes=4)
        world.settle()
        world.ask("a")
        world.appear("a")
        world.ask("b")
        world.send_give("a")
        agent = world.agent()
        while not agent.running_works():
            [channel, *_] = world.deliverable()
            world.deliver(channel)
        [work] = agent.running_works()
        context = agent.contexts[JobId("a"), GroupId("g")]
        context.state = ContextState.SAVED
        events = [
            OperationEnded(agent.node, work.id, OperationResult(complete=True)),
            ContextChanged(agent.node, agent.view(context))]
        before = world.steps
        for event in [Together(tuple(events))] if is_together else events:
            world.handle(event)
        decisions.append((world.steps - before, world.view().state, world.kinds()))
    (apart, *seen_apart), (together, *seen_together) = decisions
    assert seen_apart == seen_together
    assert together < apart * 0.75
