"""`timeslice status`: its arguments."""

from __future__ import annotations

import argparse

from timeslice.cli.command import Command, add_json, add_target, quiet_grpc

DESCRIPTION = """\
Show the groups: who holds them, who waits, whose memory is where, and what needs attention.

  timeslice status
  timeslice status --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_target(parser)


def run(given: argparse.Namespace) -> int:
    quiet_grpc()
    from timeslice.cli.status import show_status

    return show_status(given.target, given.json)


STATUS = Command("status", "show groups, holders and waiters", DESCRIPTION, add_arguments, run)
