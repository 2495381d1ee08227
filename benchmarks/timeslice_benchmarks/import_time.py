"""What importing the client costs a program, each time in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from timeslice_benchmarks.command import Size, progress
from timeslice_benchmarks.figures import Figure, of_samples
from timeslice_benchmarks.installation import BenchmarkFailed

RUNS = Size(30, 10, 2)
BUDGET_MS = 150

CLIENT = "timeslice.orchestrator.client, timeslice.snapshot_agent.client, timeslice.snapshot_agent.workload"
WAYS = {
    "import timeslice": ("", "timeslice"),
    "everything of the client, grpcio apart": ("import grpc", CLIENT),
    "everything of the client": ("", CLIENT),
    "import grpc": ("", "grpc"),
}
"""What is imported before the clock is read, and what after."""


def run(effort: str) -> list[Figure]:
    runs = RUNS.of(effort)
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(runs + 1):
        for way, (before, what) in WAYS.items():
            ms = _import_ms(before, what)
            if number:  # The first one may compile.
                took[way].append(ms)
    progress(f"{runs} interpreters each")
    with_budget = list(WAYS)[:2]
    return [of_samples(way, took[way], budget=BUDGET_MS if way in with_budget else None) for way in WAYS]


def _import_ms(before: str, what: str) -> float:
    clock = "from time import perf_counter as now"
    script = f"{before}\n{clock}\nbegan = now()\nimport {what}\nprint((now() - began) * 1000)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkFailed(f"{what} cannot be imported: {done.stderr.strip()}")
    return float(done.stdout)
