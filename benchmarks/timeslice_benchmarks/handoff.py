"""From the holder's Yield returning to the next holder's Acquire returning."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, of_samples, quantile
from timeslice_benchmarks.installation import Installation, Job
from timeslice_benchmarks.load import Load
from timeslice_demo.ground_truth import JournalLine, covered_ns

TURNS = Size(200, 60, 4)
TURNS_OF_NODES = Size(100, 40, 4)
TURNS_OF_COPIES = Size(15, 8, 3)
TURNS_OF_DELAYS = Size(6, 4, 2)
DRAINED = Size(400, 100, 8)
SMALL_MIB = 4
LARGE_MIB = 256
NODES = Size(8, 8, 2)
WAITERS = ((10, 1000), (3, 10))
"""Few and many; the second pair only shows that it runs."""
DELAY_S = 0.2
HOLD_S, PAUSE_S = 0.035, 0.02
"""A job holds long enough for the other one to wait already when it gives back, as two busy jobs do; who gave back asks
again when the handoff is over, not in the middle of it."""
DRIVER = ("call",)
"""What whoever calls the driver's lock, checkpoint, restore and unlock spends in them."""
COPIES = ("checkpoint", "restore")


@dataclass(frozen=True, slots=True)
class Handoff:
    """On the clock of the mock's journal, ns."""

    released_ns: int
    acquired_ns: int

    @property
    def ms(self) -> float:
        return (self.acquired_ns - self.released_ns) / 1e6

    def ms_within(self, journal: Sequence[JournalLine], kinds: Sequence[str]) -> float:
        """How much of it was spent in what the mock's journal has of these kinds."""
        intervals = [
            (line.begin_ns, line.end_ns)
            for line in journal
            if line.kind in kinds and line.end_ns is not None and line.end_ns > self.released_ns
            and line.begin_ns < self.acquired_ns
        ]
        return covered_ns(self.released_ns, self.acquired_ns, sorted(intervals)) / 1e6


def handoffs(turns: Sequence[Sequence[Sequence[int]]]) -> list[Handoff]:
    """Those between different jobs of which the second waited already; the very first is left out.

    Args:
        turns: of each job, the stamps of its turns; see job.py.
    """
    ordered = sorted((stamps[1], number, stamps) for number, job in enumerate(turns) for stamps in job)
    found = []
    for (_, before, left), (_, after, came) in itertools.pairwise(ordered):
        if before != after and came[0] < left[2]:
            found.append(Handoff(left[3], came[1]))
    return found[1:]


def take_turns(jobs: Sequence[Job], turns: int, hold_s: float = HOLD_S) -> list[Handoff]:
    """Let the jobs take turns, all at the same time."""
    for job in jobs:
        job.send("take_turns", turns, hold_s, PAUSE_S)
    return handoffs([job.answer() for job in jobs])


def start(place: Installation, size_mib: float, node: str | None) -> list[Job]:
    """Two jobs, each with its memory taken."""
    jobs = [place.job(name, size_mib, node, group) for name, group in names(node)]
    for job in jobs:
        job.answer()
        job.call("start")
    return jobs


def names(node: str | None) -> list[tuple[str, str]]:
    """(job, group): those that a fake agent knows, or our own."""
    return [("a", "g"), ("b", "g")] if node is not None else [("g0-j0", "g0"), ("g0-j1", "g0")]


def run(effort: str) -> list[Figure]:
    return [
        one_node(TURNS.of(effort)),
        *many_nodes(NODES.of(effort), TURNS_OF_NODES.of(effort)),
        many_slow_nodes(NODES.of(effort), TURNS_OF_DELAYS.of(effort)),
        real_copies(TURNS_OF_COPIES.of(effort)),
        *many_waiters(WAITERS[effort == "tiny"], DRAINED.of(effort)),
    ]


def one_node(turns: int) -> Figure:
    with Installation() as place:
        progress(f"1 node: a real agent on a mock GPU, {turns} turns of each job")
        agent, orchestrator = place.agent(), place.orchestrator()
        jobs = start(place, SMALL_MIB, "n0")
        take_turns(jobs, 2)
        used = {"orchestrator": orchestrator.usage(), "agent": agent.usage()}
        found = take_turns(jobs, turns)
        cpu = {
            "orchestrator": orchestrator.usage().since(used["orchestrator"]).cpu_ms / len(found),
            "agent": agent.usage().since(used["agent"]).cpu_ms / len(found),
        }
        journal = place.journal()
        driver = [one.ms_within(journal, DRIVER) for one in found]
        return of_samples(
            "handoff, driver time excluded, 1 node", [one.ms - d for one, d in zip(found, driver, strict=True)],
            budget=5.0, budget_p99=20.0,
            notes={"driver ms p50": quantile(driver, 0.5), "CPU ms per handoff, orchestrator": cpu["orchestrator"],
               "agent and its workers": cpu["agent"]})


def many_nodes(nodes: int, turns: int) -> list[Figure]:
    """All agents in one process, and each in one of its own. In truth each node has processors of its own; so many
    processes on two cores measure how these take turns, and one that serves all nodes wastes the least on that. The
    orchestrator speaks to as many agents over as many connections either way.
    """
    names_of_nodes = [f"n{number}" for number in range(nodes)]
    return [
        _many_nodes(f"handoff, {nodes} nodes (fake agents)", [names_of_nodes], turns, budget=10.0),
        _many_nodes(f"the same, {nodes} processes of agents", [[name] for name in names_of_nodes], turns),
    ]


def _many_nodes(name: str, processes: Sequence[Sequence[str]], turns: int, budget: float | None = None) -> Figure:
    with Installation() as place:
        progress(f"{name}, {turns} turns of each job")
        agents = [place.fake_agents(*nodes) for nodes in processes]
        orchestrator = place.orchestrator(["g0"])
        jobs = start(place, 0, None)
        take_turns(jobs, 2)
        used, of_agents = orchestrator.usage(), [agent.usage() for agent in agents]
        found = take_turns(jobs, turns)
        cpu = orchestrator.usage().since(used).cpu_ms / len(found)
        others = sum(agent.usage().since(was).cpu_ms for agent, was in zip(agents, of_agents, strict=True))
        return of_samples(
            name, [one.ms for one in found], budget=budget,
            notes={"CPU ms per handoff, orchestrator": cpu, "all agents": others / len(found)})


def many_slow_nodes(nodes: int, turns: int) -> Figure:
    with Installation() as place:
        progress(f"{nodes} nodes whose snapshots and restores take {DELAY_S:g} s each, {turns} turns of each job")
        place.fake_agents(*(f"n{number}" for number in range(nodes)), delay_s=DELAY_S)
        place.orchestrator(["g0"])
        jobs = start(place, 0, None)
        found = take_turns(jobs, turns, hold_s=0.5)
        return of_samples(
            f"handoff, {nodes} nodes, snapshot and restore {DELAY_S:g} s each", [one.ms for one in found],
            budget=2000 * DELAY_S + 20, notes={"if one node came after the other, ms": nodes * 2000 * DELAY_S})


def real_copies(turns: int) -> Figure:
    with Installation() as place:
        progress(f"contexts of {LARGE_MIB} MiB, {turns} turns of each job")
        place.agent(memory_mib=LARGE_MIB + LARGE_MIB // 2 + 128)
        place.orchestrator()
        jobs = start(place, LARGE_MIB, "n0")
        found = take_turns(jobs, turns, hold_s=0.4)
        journal = place.journal()
        copies = [one.ms_within(journal, COPIES) for one in found]
        return of_samples(
            f"whole switch beyond its copies, {LARGE_MIB} MiB",
            [one.ms - c for one, c in zip(found, copies, strict=True)],
            budget=20.0, notes={"snapshot and restore ms p50": quantile(copies, 0.5)})


def many_waiters(numbers: tuple[int, int], handoffs_of_each: int) -> list[Figure]:
    found = {}
    for waiters in numbers:
        progress(f"one group with {waiters} waiters")
        with Installation() as place:
            place.fake_agents("n0", jobs=waiters + 1)
            place.orchestrator(["g0"])
            found[waiters] = asyncio.run(_drain(place.orchestrator_address, waiters, handoffs_of_each))
    few, many = (quantile(found[waiters], 0.5) for waiters in numbers)
    return [
        *(of_samples(f"handoff, {waiters:,} waiters (fake agent)", found[waiters]) for waiters in numbers),
        Figure("the second over the first", "x", many / few, budget=1.15),
    ]


async def _drain(address: str, waiters: int, handoffs_of_each: int) -> list[float]:
    took: list[float] = []
    async with Load(address) as load:
        while len(took) < handoffs_of_each:
            took += await load.drain_ms("g0", waiters, min(waiters, handoffs_of_each - len(took)))
    return took
