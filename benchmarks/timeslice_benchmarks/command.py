"""What all benchmarks have in common on the command line."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timeslice_benchmarks import figures, machine
from timeslice_benchmarks.installation import BenchmarkFailed, Installation
from timeslice_demo.mock_gpus import NoMock


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: by default, with --quick, and in tests."""

    normal: int
    quick: int
    tiny: int

    def of(self, effort: str) -> int:
        return int(getattr(self, effort))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`run` measures; it is given "normal", "quick" or "tiny"."""

    summary: str
    run: Callable[[str], list[figures.Figure]]


def progress(text: str) -> None:
    """A line for who waits."""
    print(f"... {text}", file=sys.stderr, flush=True)


def main(benchmarks: Mapping[str, Benchmark], arguments: Sequence[str]) -> int:
    """The exit status: 0 (also where a budget is missed: the table says so), 1 if it could not be measured."""
    parser = argparse.ArgumentParser(
        prog="benchmarks", description="Measures what docs/performance.md promises and prints a table.",
        epilog="Budgets are for a machine with 2 cores that does nothing else.")
    parser.add_argument(
        "benchmark", choices=sorted(benchmarks),
        help="; ".join(f"{name}: {benchmark.summary}" for name, benchmark in sorted(benchmarks.items())))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", dest="effort", action="store_const", const="quick", default="normal",
                        help="fewer samples: a look, no verdict")
    effort.add_argument("--tiny", dest="effort", action="store_const", const="tiny", help="only see that it runs")
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        with Installation() as place:
            fsync = machine.fsync_ms(place.folder)
        measured = benchmarks[chosen.benchmark].run(chosen.effort)
    except (BenchmarkFailed, NoMock) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    facts = machine.described(fsync)
    print(figures.table(measured, fsync))
    print(f"{facts['cores']} cores, load {facts['load_1min_at_the_end']}, took {time.monotonic() - started:.0f} s")
    if chosen.json is not None:
        figures.write_json(chosen.json, chosen.benchmark, measured, facts)
    return 0
