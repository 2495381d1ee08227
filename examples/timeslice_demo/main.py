"""The demo's command line: make both runs, print the table and the proof, write the report, leave nothing behind."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import grpc

from timeslice_demo.child_processes import Family
from timeslice_demo.jobs import JobFailed
from timeslice_demo.mock_gpus import NoMock, find_libraries
from timeslice_demo.outcome import Outcome, make_outcome
from timeslice_demo.progress import Progress
from timeslice_demo.recorded import Plan, make_plan
from timeslice_demo.report import write_report
from timeslice_demo.runs import ORDINALS, RunConfig, Runs
from timeslice_demo.services import ServiceFailed
from timeslice_demo.table import table

MIB = 2**20
MAX_JOBS = 6
SOCKET_ROOM = 60
"""Bytes of a folder's path that leave room for the names of sockets in it; the system's limit is 107 in all."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is."""

    steps: int
    speed_per_job: float
    """Recorded seconds per second of ours, for each job: more jobs go faster, so that the demo takes as long."""
    device_bytes: int
    sample_period_s: float


FULL = Size(steps=5, speed_per_job=90, device_bytes=20 * MIB, sample_period_s=0.05)
QUICK = Size(steps=3, speed_per_job=300, device_bytes=8 * MIB, sample_period_s=0.02)

DEVICE_SHARE = 0.55
CORRUPTION = ("corrupt", "times=1")
"""What --inject-corruption tells the mock: one random byte of the next restore is changed."""


class BadArgument(Exception):
    """A flag's value cannot be used; the text says what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; its exit status: 0 fine, 1 not the same or a job failed, 2 bad arguments, 130 interrupted."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options)
    except (BadArgument, NoMock, ServiceFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything that was started has been ended and removed", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Real reinforcement-learning jobs, alone and taking turns on two simulated GPUs: how long,"
        " how busy, and is it the same?",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help=f"how many jobs share the GPUs, 2 to {MAX_JOBS} (default: 2)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (default: 0)")
    parser.add_argument(
        "--scale",
        type=float,
        help="how many times faster than the recorded run (default: 90 per job, with --quick 300 per job)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, shorter phases: under 30 s")
    parser.add_argument("--report", metavar="DIR", type=Path, help="write summary.json and index.html there")
    parser.add_argument(
        "--inject-corruption",
        action="store_true",
        help="change one random byte in a restore, to see that the proof can fail",
    )
    parser.add_argument(
        "--without-orchestrator",
        action="store_true",
        help="start the jobs together without turns, to see that they do not fit",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    size = QUICK if options.quick else FULL
    plan, scale = _plan(options, size)
    report = _report_folder(options.report)
    libraries = find_libraries()
    progress = Progress(size.steps)
    with _folder(_memory_folder()) as devices, _folder(_short_folder()) as files, _family() as family:
        with (files / "errors").open("w+", encoding="utf-8") as errors:
            config = RunConfig(
                plan=plan,
                seed=options.seed,
                libraries=libraries,
                devices_folder=devices,
                files_folder=files,
                device_bytes=size.device_bytes,
                device_share=DEVICE_SHARE,
                sample_period_s=size.sample_period_s,
            )
            try:
                if options.without_orchestrator:
                    return _show_without_orchestrator(Runs(config, family, errors), progress, list(plan.jobs))
                settings = {
                    "jobs": options.jobs,
                    "steps": size.steps,
                    "seed": options.seed,
                    "scale": scale,
                    "sample_period_s": size.sample_period_s,
                }
                outcome = _make_runs(Runs(config, family, errors), progress, plan, settings, options.inject_corruption)
            except (JobFailed, grpc.RpcError, RuntimeError) as error:
                progress.end()
                print(f"demo: {error}", file=sys.stderr)
                _print_tail(errors)
                return 1
    print("\n" + table(outcome), flush=True)
    if report is not None:
        print(f"\n  report: {write_report(outcome, report)}", flush=True)
    return 1 if outcome.failures else 0


def _make_runs(
    runs: Runs, progress: Progress, plan: Plan, settings: dict[str, float], inject_corruption: bool
) -> Outcome:
    jobs = list(plan.jobs)
    phases_s = plan.solo_s
    progress.headline(f"(a) {len(jobs)} jobs one after the other, each alone on both GPUs: about {phases_s:.0f} s")
    solo = runs.solo(progress.event)
    progress.headline(
        f"(b) {len(jobs)} jobs take turns, through orchestrator and snapshot agent: about {phases_s * 0.62:.0f} s"
    )
    timesliced = runs.timesliced(progress.event, (CORRUPTION,) if inject_corruption else ())
    progress.end()
    return make_outcome(plan, settings, solo, timesliced, ORDINALS)


def _show_without_orchestrator(runs: Runs, progress: Progress, jobs: list[str]) -> int:
    progress.headline(f"{len(jobs)} jobs start together, each as if both GPUs were its own")
    failure = runs.without_orchestrator(progress.event)
    progress.end()
    print(
        f"  {failure}\n  Two jobs do not fit on these GPUs at once: without turns the second one cannot run.",
        flush=True,
    )
    return 1


def _plan(options: argparse.Namespace, size: Size) -> tuple[Plan, float]:
    if not 2 <= options.jobs <= MAX_JOBS:
        raise BadArgument(f"--jobs {options.jobs} cannot be; give a number from 2 to {MAX_JOBS}")
    if options.seed < 0:
        raise BadArgument(f"--seed {options.seed} cannot be; give a number that is not negative")
    scale = options.scale if options.scale is not None else size.speed_per_job * options.jobs
    if not 1 <= scale <= 5000:
        raise BadArgument(f"--scale {scale:g} cannot be; give how many times faster than recorded, from 1 to 5000")
    return make_plan(options.jobs, size.steps, 1 / scale), scale


def _report_folder(folder: Path | None) -> Path | None:
    """The folder, made and tried before the run that it is for.

    A relative one counts from where the user called `bazel run`, not from where Bazel runs the program.
    """
    if folder is None:
        return None
    folder = Path(os.environ.get("BUILD_WORKING_DIRECTORY", "")) / folder.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadArgument(f"--report {folder} cannot be written ({error.strerror}); give another folder") from None
    return folder


@contextmanager
def _family() -> Iterator[Family]:
    """Ends all processes at the end; a Ctrl-C while it does so waits until it is done."""
    family = Family()
    try:
        yield family
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        family.end()
        signal.signal(signal.SIGINT, before)


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    """A new folder, named after this process, that is gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"timeslice-demo-{os.getpid()}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory_folder() -> Path:
    """Where simulated device memory lies: in memory where there is room, else among the other temporary files."""
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 256 * MIB:
        return shared
    return Path(tempfile.gettempdir())


def _short_folder() -> Path:
    """The folder for temporary files, or /tmp where that is too long for sockets."""
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= SOCKET_ROOM else "/tmp")


def _print_tail(errors: IO[str], lines: int = 12) -> None:
    errors.seek(0)
    for line in errors.read().splitlines()[-lines:]:
        print(f"  {line}", file=sys.stderr)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
