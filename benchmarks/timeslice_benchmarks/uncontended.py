"""Acquire and yield when nobody else wants the group and the job's memory is on the device."""

from __future__ import annotations

import asyncio

from timeslice_benchmarks import machine
from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, of_samples
from timeslice_benchmarks.installation import GROUP, Installation
from timeslice_benchmarks.load import Load

ROUNDS = Size(1500, 300, 10)
BLOCK = 50
"""The kinds of rounds take turns, so many at a time: what else runs on the machine hits all alike."""
SIZE_MIB = 8


def run(effort: str) -> list[Figure]:
    with Installation() as place:
        progress("an agent on a mock GPU, an orchestrator, one job")
        place.agent()
        place.orchestrator()
        job = place.job("a", SIZE_MIB)
        job.answer()
        job.call("start")
        place.echo()
        rounds = ROUNDS.of(effort)
        job.call("rounds", min(rounds, BLOCK))  # not counted: everything is used for the first time
        by_library: list[float] = []
        by_calls: list[float] = []
        bare: list[float] = []

        async def other_rounds(times: int) -> None:
            async with Load(place.orchestrator_address) as load:
                await load.rounds_ms(GROUP, "a", 2)
                by_calls.extend(await load.rounds_ms(GROUP, "a", times))
            bare.extend(await machine.echo_pairs_ms(place.echo_address, times))

        for done in range(0, rounds, BLOCK):
            times = min(BLOCK, rounds - done)
            by_library += [ns / 1e6 for ns in job.call("rounds", times)]
            asyncio.run(other_rounds(times))
        progress(f"{rounds} rounds done")
        library = of_samples("acquire + yield, context resident, client library", by_library, budget=2.5)
        calls = of_samples("the same by bare gRPC calls", by_calls)
        echoes = of_samples("two bare grpc.aio round trips", bare)
        return [library, calls, echoes]
