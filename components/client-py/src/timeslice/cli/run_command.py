"""`timeslice run`: its arguments."""

from __future__ import annotations

import argparse
import os

from timeslice.cli.command import Command, add_target, quiet_grpc
from timeslice.cli.completing import completes_groups
from timeslice.cli.errors import BAD_INPUT, CommandError

DESCRIPTION = """\
Run a command that uses a group of accelerators: wait for the group, hold it while the command runs, give it back.

  timeslice run --group trainers -- python train.py --lr 1e-4
  timeslice run --group trainers --no-hold -- torchrun --nproc-per-node 4 loop.py

The command and all that it starts, daemons and data loaders too, belong to the job: what any of them has on a device is
frozen, saved and brought back with it. With --no-hold the command takes turns by itself, with the timeslice library;
job, group and addresses are in its environment (TIMESLICE_JOB_ID, TIMESLICE_GROUP_ID, TIMESLICE_ORCH_ADDR).

Ends with the command's own exit code (128 + N after signal N); SIGINT, SIGTERM and SIGHUP are passed on to it.
"""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds above 0")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    completes_groups(
        parser.add_argument(
            "--group", metavar="NAME", help="the accelerators that the command uses (default: $TIMESLICE_GROUP_ID)"
        )
    )
    parser.add_argument(
        "--job", metavar="ID", help="the job's name (default: $TIMESLICE_JOB_ID, else USER-COMMAND-PID)"
    )
    parser.add_argument(
        "--no-hold", action="store_true", help="do not hold the group around the command; it acquires by itself"
    )
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="give up when the group is not granted within S seconds"
    )
    parser.add_argument("--verbose", action="store_true", help="say what is set up for the command")
    add_target(parser)
    parser.add_argument(
        "--agent",
        metavar="ADDRESS",
        help="this node's snapshot agent (default: $TIMESLICE_AGENT_ADDR, else this machine's own)",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run")


def run(given: argparse.Namespace) -> int:
    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    if not words:
        raise CommandError("no command is given; for example: timeslice run --group NAME -- python train.py", BAD_INPUT)
    env = dict(os.environ)  # The command's: before grpc is made quiet here.
    quiet_grpc()
    from timeslice.cli.run import run_command
    from timeslice.cli.run_plan import plan

    return run_command(
        plan(
            words,
            env,
            group=given.group,
            job=given.job,
            target=given.target,
            agent=given.agent,
            holds=not given.no_hold,
            timeout_s=given.timeout,
            verbose=given.verbose,
        )
    )


RUN = Command("run", "run a command while it holds a group", DESCRIPTION, add_arguments, run)
