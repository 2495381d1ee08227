"""How much a handoff costs must not grow with who else waits: counted in steps of the interpreter, not in time."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from orchestrator.core.effects import Effect
from orchestrator.core.events import Event
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
