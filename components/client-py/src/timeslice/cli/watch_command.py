"""`timeslice watch`: its arguments."""

from __future__ import annotations

import argparse

from timeslice.cli.command import Command, add_json, add_target, quiet_grpc
from timeslice.cli.completing import completes_groups

DESCRIPTION = """\
Show the groups as they change, until Ctrl-C. The orchestrator pushes each change; its restarts are waited for. On a
terminal it is a live table (with rich: pip install 'timeslice-rl[cli]'), else a line for each event.

  timeslice watch
  timeslice watch trainers samplers
  timeslice watch | grep granted
  timeslice watch --json | jq 'select(.kind == "blocked")'
"""


def _sequence(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a sequence; give a number")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    completes_groups(parser.add_argument("groups", nargs="*", metavar="GROUP", help="only these groups (default: all)"))
    add_json(parser, "one JSON object a line: every event with the group's whole status")
    parser.add_argument("--plain", action="store_true", help="a line for each event on a terminal too")
    parser.add_argument(
        "--after",
        type=_sequence,
        default=0,
        metavar="SEQUENCE",
        help="first every event after this one, as far as the orchestrator remembers (--json shows sequences)",
    )
    add_target(parser)


def run(given: argparse.Namespace) -> int:
    quiet_grpc()
    from timeslice.cli.watch import watch

    return watch(given.target, given.groups, given.after, given.json, given.plain)


WATCH = Command("watch", "show the groups as they change", DESCRIPTION, add_arguments, run)
