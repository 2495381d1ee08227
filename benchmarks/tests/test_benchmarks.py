"""Each benchmark runs on real processes and writes figures that a program can read. Nothing here is timed."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from timeslice_demo.child_processes import child_environment

LIMIT_S = 300.0

EXPECTED = {
    "agent": {"Snapshot order to pushed end, driver time excluded": 4, "Snapshot as a call of its own": 4},
    "handoff": {
        "handoff, driver time excluded, 1 node": 1, "handoff, 2 nodes (fake agents)": 1,
        "the same, 2 processes of agents": 1,
    },
    "import_time": {"import timeslice": 2, "everything of the client, grpcio apart": 2},
    "profile": {
        "orchestrator: grant on disk": 1, "sum without the driver's": 1,
        "CPU per handoff: agent": 1,
    },
    "scale": {"handoffs per second, 5 groups of 2 jobs": 1, "orchestrator's memory, 10 groups and 50 waiters": 1},
    "uncontended": {"acquire + yield, context resident, client library": 10, "two bare grpc.aio round trips": 10},
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "timeslice_benchmarks", *arguments], env=child_environment({}), capture_output=True,
        text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_runs_and_writes_its_figures(name: str, tmp_path: pathlib.Path) -> None:
    done = run(name, "--tiny", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert "fsync ms" in done.stdout
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["benchmark"] == name
    assert told["machine"]["fsync_ms"] > 0
    figures = {figure["what"]: figure for figure in told["figures"]}
    for what, samples in EXPECTED[name].items():
        assert figures[what]["samples"] >= samples
        assert figures[what]["p50"] > 0


def test_an_unknown_benchmark_is_bad_usage() -> None:
    done = run("nonsense")
    assert done.returncode == 2
    assert "invalid choice: 'nonsense'" in done.stderr
