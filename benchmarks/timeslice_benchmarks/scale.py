"""Many groups and many waiters: handoffs per second, cost, memory, and what an idle orchestrator costs."""

from __future__ import annotations

import asyncio
import json
import time

from timeslice_benchmarks import machine
from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, quantile
from timeslice_benchmarks.installation import Installation, Server
from timeslice_benchmarks.load import Load
from timeslice_benchmarks.usage import memory_mb

GROUPS = Size(500, 500, 5)
TURNS_S = Size(12, 5, 1)
ECHO_S = Size(4, 2, 1)
ACTIVE_GROUPS = 10
COSTS_S = Size(4, 2, 1)
LARGEST = Size(10_000, 1_000, 10)
DRAINED = Size(300, 100, 8)
MEMORY_GROUPS = Size(1000, 1000, 10)
WAITERS_PER_GROUP = 5
IDLE_S = Size(10, 5, 1)
STARTED_S = Size(5, 5, 1)
"""Until what starting has left to do is done."""


def run(effort: str) -> list[Figure]:
    return [
        handoffs_per_s(effort),
        *cost_of_groups(effort),
        *cost_of_waiters(effort),
        *memory_and_idle(effort),
    ]


def handoffs_per_s(effort: str) -> Figure:
    groups = [f"g{number}" for number in range(GROUPS.of(effort))]
    with Installation() as place:
        progress(f"{len(groups)} groups of 2 jobs")
        place.echo()
        ceilings = [asyncio.run(machine.echo_calls_per_s(place.echo_address, ECHO_S.of(effort) / 2))]
        agent, orchestrator = place.fake_agents("n0", groups=len(groups)), place.orchestrator(groups)
        before = orchestrator.usage()
        granted = asyncio.run(_turns(place.orchestrator_address, groups, TURNS_S.of(effort)))
        cpu = orchestrator.usage().since(before).cpu_ms / len(granted)
        # Its beginning and its end do not count: not all jobs are at work then.
        first, last = granted[0], granted[-1]
        quarter = (last - first) / 4
        steady = [at_s for at_s in granted if first + quarter <= at_s <= last - quarter]
        rate = len(steady) / (steady[-1] - steady[0]) if len(steady) > 1 else 0.0
        agent.stop()
        told = json.loads(agent.log.read_text(encoding="utf-8").splitlines()[-1])
        ceilings.append(asyncio.run(machine.echo_calls_per_s(place.echo_address, ECHO_S.of(effort) / 2)))
        calls_per_s = sum(ceilings) / len(ceilings)
        # A call is two messages, a message of the agent's stream one; a turn has an Acquire and a Yield.
        messages = 2 * (told["calls"] / len(granted) + 2) + told["messages"] / len(granted)
        ceiling = calls_per_s * 2 / messages
        return Figure(
            f"handoffs per second, {len(groups)} groups of 2 jobs", "1/s", rate, budget=300.0, at_least=True,
            samples=len(steady),
            notes={"bare echo calls/s": calls_per_s, "messages per handoff": messages,
                   "ceiling of as many messages, handoffs/s": ceiling, "share reached": rate / ceiling,
                   "CPU ms per handoff, orchestrator": cpu})


async def _turns(address: str, groups: list[str], duration_s: float) -> list[float]:
    async with Load(address) as load:
        return sorted(await load.take_turns(groups, duration_s))


def _steps(largest: int) -> list[int]:
    return [step for step in (10, 100, 1_000, 10_000) if step <= largest]


def cost_of_groups(effort: str) -> list[Figure]:
    """The same ten groups are busy; all others only exist."""
    figures = []
    for count in _steps(LARGEST.of(effort)):
        progress(f"{count} groups, {ACTIVE_GROUPS} of them busy")
        groups = [f"g{number}" for number in range(count)]
        with Installation() as place:
            place.fake_agents("n0", groups=count)
            orchestrator = place.orchestrator(groups)
            asyncio.run(_turns(place.orchestrator_address, groups[:ACTIVE_GROUPS], 0.5))
            before = orchestrator.usage()
            granted = asyncio.run(_turns(place.orchestrator_address, groups[:ACTIVE_GROUPS], COSTS_S.of(effort)))
            cpu = orchestrator.usage().since(before).cpu_ms / len(granted)
            figures.append(Figure(
                f"orchestrator's CPU per handoff, {count:,} groups", "ms", cpu, samples=len(granted),
                notes={"MB": memory_mb(orchestrator.pid)}))
    return figures


def cost_of_waiters(effort: str) -> list[Figure]:
    """One group; every waiter is a job with a saved context."""
    figures = []
    for waiters in _steps(LARGEST.of(effort)):
        progress(f"one group with {waiters} waiters")
        handoffs = min(DRAINED.of(effort), waiters)
        with Installation() as place:
            place.fake_agents("n0", jobs=waiters + 1)
            orchestrator = place.orchestrator(["g0"])
            took = asyncio.run(_drained(place.orchestrator_address, waiters, handoffs))
            figures.append(Figure(
                f"handoff, {waiters:,} waiters", "ms", quantile(took, 0.5), quantile(took, 0.99), samples=len(took),
                notes={"MB": memory_mb(orchestrator.pid)}))
    return figures


async def _drained(address: str, waiters: int, handoffs: int) -> list[float]:
    async with Load(address) as load:
        return await load.drain_ms("g0", waiters, handoffs)


def memory_and_idle(effort: str) -> list[Figure]:
    groups = [f"g{number}" for number in range(MEMORY_GROUPS.of(effort))]
    waiters = len(groups) * WAITERS_PER_GROUP
    with Installation() as place:
        progress(f"{len(groups)} groups without traffic")
        place.fake_agents("n0", groups=len(groups), jobs=WAITERS_PER_GROUP + 1)
        orchestrator = place.orchestrator(groups)
        empty = memory_mb(orchestrator.pid)
        time.sleep(STARTED_S.of(effort))
        idle = _idle_share(orchestrator, IDLE_S.of(effort))
        progress(f"{len(groups)} groups with {waiters} waiters")
        full = asyncio.run(_memory_with_waiters(place, orchestrator, groups))
        bare = asyncio.run(machine.blocked_call_kb(place.echo_address, place.echo().pid, waiters))
        return [
            Figure(f"orchestrator's memory, {len(groups):,} groups and {waiters:,} waiters", "MB", full, budget=150.0,
                   notes={"MB without waiters": empty, "kB per waiter": (full - empty) * 1000 / waiters,
                          "kB per blocked call of a bare grpc.aio server": bare}),
            Figure(f"idle, {len(groups):,} groups and no traffic", "% of a core", idle, budget=1.0),
        ]


def _idle_share(orchestrator: Server, duration_s: float) -> float:
    before = orchestrator.usage()
    time.sleep(duration_s)
    return orchestrator.usage().since(before).cpu_ms / (duration_s * 1000) * 100


async def _memory_with_waiters(place: Installation, orchestrator: Server, groups: list[str]) -> float:
    async with Load(place.orchestrator_address) as load:
        await asyncio.gather(*(load.acquire(group, f"{group}-j0") for group in groups))
        waiting = [
            asyncio.create_task(load.acquire(group, f"{group}-j{number}"))
            for group in groups
            for number in range(1, WAITERS_PER_GROUP + 1)]
        await load.queued(groups, WAITERS_PER_GROUP)
        memory = memory_mb(orchestrator.pid)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return memory
