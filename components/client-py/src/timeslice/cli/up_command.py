"""`timeslice up`: its arguments."""

from __future__ import annotations

import argparse
import os
import sys

from timeslice.cli.command import Command
from timeslice.cli.completing import completes_folders

DESCRIPTION = """\
Start an orchestrator and a snapshot agent on this machine, and keep them until Ctrl-C.

Jobs of the same user find them by themselves. Without --group each GPU is a group of its own: gpu0, gpu1, ...
A GPU is an index ("0") or a UUID ("GPU-...").

  timeslice up
  timeslice up --group samplers=0 --group trainers=1
  timeslice up --group pool=0,1

Without a GPU, the same on mock GPUs, for jobs that are started with `gpu-mock run -- COMMAND`:

  timeslice up --mock 2x80GiB
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
        "--mock", metavar="GPUS", help="mock GPUs, made if there are none, such as 2x80GiB (needs timeslice-gpu-mock)"
    )


def run(given: argparse.Namespace) -> int:
    if given.mock is not None:
        from timeslice.cli.mock import become_on_mock_gpus

        become_on_mock_gpus(given.mock, sys.argv[1:], os.environ)
    from timeslice.cli.up import plan, up

    return up(plan(given.group, given.node, given.state_dir, given.listen, os.environ))


UP = Command("up", "start orchestrator and snapshot agent on this machine", DESCRIPTION, add_arguments, run)
