"""`timeslice doctor`: its arguments."""

from __future__ import annotations

import argparse

from timeslice.cli.command import Command, add_json, add_target, quiet_grpc

DESCRIPTION = """\
Look for what would keep timeslice from working here: driver and GPUs, installation, servers, permissions, memory, and
variables that make a job end itself while it is saved. Changes nothing. Exit code 1 if anything fails.

  timeslice doctor
  timeslice doctor --json | jq '.findings[] | select(.grade != "OK")'

Run it where a job will run: as its user, in its environment.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_target(parser)
    parser.add_argument(
        "--agent",
        metavar="ADDRESS",
        help="this node's snapshot agent (default: $TIMESLICE_AGENT_ADDR, else this machine's own)",
    )


def run(given: argparse.Namespace) -> int:
    quiet_grpc()
    from timeslice.cli.doctor.command import doctor

    return doctor(given.target, given.agent, given.json)


DOCTOR = Command("doctor", "look for what would keep timeslice from working", DESCRIPTION, add_arguments, run)
