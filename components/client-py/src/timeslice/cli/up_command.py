"""`timeslice up`: its arguments."""

from __future__ import annotations

import argparse
import os
import sys

from timeslice.cli.command import Command, add_json
from timeslice.cli.completing import completes_folders

DESCRIPTION = """\
Start an orchestrator and a snapshot agent on this machine, and keep them until Ctrl-C.

Jobs of the same user find them by themselves. Without --group each GPU is a group of its own: gpu0, gpu1, ...
A GPU is an index ("0") or a UUID ("GPU-...").

  timeslice up
  timeslice up --group samplers=0 --group trainers=1
  timeslice up --group pool=0,1 --on-unsaveable kill

Without a GPU, the same on mock GPUs, for jobs that are started with `gpu-mock run -- COMMAND`:

  timeslice up --mock 2x80GiB

The orchestrator's other settings are variables, as in TIMESLICE_ORCH_SESSION_TTL_S=60 timeslice up
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=GPU[,GPU...]",
        help="accelerators that jobs take together; may be repeated",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="this machine's name (default: $TIMESLICE_NODE, else the host name)"
    )
    completes_folders(
        parser.add_argument(
            "--state-dir",
            metavar="DIR",
            help="leases, tokens and logs, kept between runs"
            " (default: $TIMESLICE_STATE_DIR, else below ~/.local/state)",
        )
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="serve clients here too, besides the unix socket of this machine"
    )
    parser.add_argument(
        "--insecure-listen",
        action="store_true",
        help="allow a --listen address that other machines can reach, although nobody checks who calls",
    )
    parser.add_argument(
        "--on-unsaveable",
        action="append",
        default=[],
        metavar="[GROUP=]POLICY",
        help="what becomes of a job that cannot be saved and is in the next one's way: wait (default: the group is"
        " Blocked until somebody acts) or kill (its processes, after --kill-grace); may be repeated for groups",
    )
    parser.add_argument(
        "--kill-grace", type=float, metavar="SECONDS", help="how long such a group is Blocked before (default: 30)"
    )
    add_json(parser, "one line for programs on stdout when all is ready; the rest goes to stderr")
    parser.add_argument(
        "--mock", metavar="GPUS", help="mock GPUs, made if there are none, such as 2x80GiB (needs timeslice-gpu-mock)"
    )


def run(given: argparse.Namespace) -> int:
    if given.mock is not None:
        from timeslice.cli.mock import become_on_mock_gpus

        become_on_mock_gpus(given.mock, sys.argv[1:], os.environ, sys.stderr if given.json else sys.stdout)
    from timeslice.cli.up import up
    from timeslice.cli.up_plan import plan

    return up(plan(given, os.environ), given.json)


UP = Command("up", "start orchestrator and snapshot agent on this machine", DESCRIPTION, add_arguments, run)
