"""Where the time of one handoff goes: hop by hop, and how much of a core each process needs for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, of_samples
from timeslice_benchmarks.handoff import DRIVER, HOLD_S, PAUSE_S, SMALL_MIB, Handoff, handoffs, start, take_turns
from timeslice_benchmarks.installation import BenchmarkFailed, Installation, Server
from timeslice_benchmarks.usage import Usage, usage
from timeslice_demo.ground_truth import JournalLine

TURNS = Size(200, 60, 4)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened somewhere, ns on the clock of all."""

    at_ns: int
    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Stage:
    """The next moment of a handoff, and what the time until it is called."""

    where: str
    what: str
    hop: str


STAGES = (
    Stage("orchestrator", "YieldRequested", "Yield: client to orchestrator's core"),
    Stage("orchestrator", "Recorded", "orchestrator: intent on disk"),
    Stage("agent", "Requested snapshot", "Snapshot, and the Restore with it: orchestrator to agent's core"),
    Stage("driver", "lock begins", "agent: lock to the driver worker (its record goes to the disk meanwhile)"),
    Stage("driver", "lock ends", "(driver: lock)"),
    Stage("driver", "checkpoint begins", "agent's worker: lock's answer, checkpoint"),
    Stage("driver", "checkpoint ends", "(driver: checkpoint)"),
    Stage("driver", "restore begins", "agent's worker: checkpoint's answer, restore"),
    Stage("driver", "restore ends", "(driver: restore)"),
    Stage("driver", "unlock begins", "agent's worker: restore's answer, unlock"),
    Stage("driver", "unlock ends", "(driver: unlock)"),
    Stage("agent", "Answered unlock", "agent: unlock's answer from the worker"),
    Stage("orchestrator", "OperationEnded", "pushed end: agent to orchestrator's core"),
    Stage("orchestrator", "Recorded", "orchestrator: grant on disk"),
    Stage("client", "acquired", "Acquire's answer to the waiting job"),
)
LAST_OF_ITS_KIND = {"OperationEnded"}
"""Two ends are pushed; the second one lets the switch go on."""


def run(effort: str) -> list[Figure]:
    turns = TURNS.of(effort)
    with Installation() as place:
        progress(f"1 node: a real agent on a mock GPU, {turns} turns of each job")
        traces = {name: place.folder / f"{name}.trace" for name in ("orchestrator", "agent")}
        agent = place.agent(trace=traces["agent"])
        orchestrator = place.orchestrator(trace=traces["orchestrator"])
        jobs = start(place, SMALL_MIB, "n0")
        take_turns(jobs, 2)
        servers: dict[str, Callable[[], Usage]] = {
            "orchestrator": lambda: usage(orchestrator.pid),
            "agent": lambda: usage(agent.pid),
            "agent's driver workers": lambda: _workers(agent),
            "both jobs": lambda: usage(jobs[0].process.pid) + usage(jobs[1].process.pid),
        }
        before = {name: read() for name, read in servers.items()}
        for job in jobs:
            job.send("take_turns", turns, HOLD_S, PAUSE_S)
        stamps = [job.answer() for job in jobs]
        after = {name: read().since(before[name]) for name, read in servers.items()}
        journal = place.journal()
        for server in (orchestrator, agent):
            server.stop()
        moments = [*_of_driver(journal), *(m for name, trace in traces.items() for m in _of_core(name, trace))]
    found = handoffs(stamps)
    released = {stamp[3]: stamp[2] for job in stamps for stamp in job}
    chains = [_chain(one, released[one.released_ns], moments) for one in found]
    return [*_rows(found, [c for c in chains if c is not None]), *_usage_rows(after, len(found))]


def _rows(found: Sequence[Handoff], chains: Sequence[Mapping[str, float]]) -> list[Figure]:
    if not chains:
        raise BenchmarkFailed("no handoff whose hops could be told apart")
    rows = [of_samples(stage.hop, [chain[stage.hop] for chain in chains]) for stage in STAGES]
    rows.append(of_samples("sum of all hops", [sum(chain.values()) for chain in chains]))
    beyond = [sum(ms for hop, ms in chain.items() if not hop.startswith("(")) for chain in chains]
    rows.append(of_samples("sum without the driver's", beyond))
    rows.append(of_samples("handoff: Yield returned to Acquire returned", [one.ms for one in found]))
    return rows


def _usage_rows(used: Mapping[str, Usage], count: int) -> list[Figure]:
    rows = []
    for name, of_it in used.items():
        rows.append(Figure(
            f"CPU per handoff: {name}", "ms", of_it.cpu_ms / count, samples=count,
            notes={"times a thread went to sleep": of_it.sleeps / count}))
    return rows


def _chain(one: Handoff, releasing_ns: int, moments: Iterable[Moment]) -> dict[str, float] | None:
    """How long each hop took, ms; None: something else was in between (a retry, a repair)."""
    within = sorted(
        (moment for moment in moments if releasing_ns <= moment.at_ns <= one.acquired_ns), key=lambda m: m.at_ns)
    within.append(Moment(one.acquired_ns, "client", "acquired"))
    took: dict[str, float] = {}
    at, at_ns = 0, releasing_ns
    for stage in STAGES:
        named = [n for n in range(at, len(within)) if (within[n].where, within[n].what) == (stage.where, stage.what)]
        if not named:
            return None
        at = named[-1] if stage.what in LAST_OF_ITS_KIND else named[0]
        took[stage.hop] = (within[at].at_ns - at_ns) / 1e6
        at_ns = within[at].at_ns
        at += 1
    return took


def _of_driver(journal: Iterable[JournalLine]) -> Iterable[Moment]:
    for line in journal:
        if line.kind in DRIVER and line.end_ns is not None:
            yield Moment(line.begin_ns, "driver", f"{line.name} begins")
            yield Moment(line.end_ns, "driver", f"{line.name} ends")


def _of_core(name: str, trace: Path) -> Iterable[Moment]:
    for begin_ns, _, event, details in json.loads(trace.read_text(encoding="utf-8")):
        more = details.get("kind") if event == "Requested" else details.get("verb") if event == "Answered" else None
        yield Moment(begin_ns, name, f"{event} {more}" if more else event)


def _workers(agent: Server) -> Usage:
    return agent.usage().since(usage(agent.pid))
