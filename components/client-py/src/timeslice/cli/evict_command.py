"""`timeslice evict`: its arguments, one sub-command for each action of the orchestrator's Evict."""

from __future__ import annotations

import argparse
from typing import Any

from timeslice.cli.command import Command, HelpFormatter, add_json, add_target, quiet_grpc
from timeslice.cli.completing import completes_groups
from timeslice.cli.errors import BAD_INPUT, CommandError

DESCRIPTION = """\
Take something away from a job, for operators: its lease, its place in a queue, its processes; or a node from all.

  timeslice evict end-lease trainers               # whoever holds it is frozen and saved
  timeslice evict drop-waiter trainers run-7
  timeslice evict clear-fault trainers run-7       # after its cause is gone
  timeslice evict kill trainers run-7 --reason "does not yield"
  timeslice evict forget-node node-3               # the machine is gone for good

It says what it would do and asks, unless you say --yes; clear-fault takes nothing from anybody and does not ask.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")

    action = _action(actions, "end-lease", "end the lease of a group's holder: it is frozen and saved")
    _group(action)
    action.add_argument("job", nargs="?", metavar="JOB", help="only if this job holds it")

    action = _action(actions, "drop-waiter", "take a job out of a group's queue: its acquire fails")
    _group(action)
    action.add_argument("job", nargs="?", metavar="JOB", help="all its requests")
    action.add_argument("--request", metavar="ID", help="this request alone (timeslice status --json names them)")

    action = _action(actions, "clear-fault", "forget a job's fault and look at its context anew")
    _group(action)
    action.add_argument("job", metavar="JOB")

    action = _action(actions, "kill", "kill a job's processes on the group's nodes")
    _group(action)
    action.add_argument("job", metavar="JOB")

    action = _action(actions, "forget-node", "give up a node that is gone for good, in all groups")
    action.add_argument("node", metavar="NODE")


def run(given: argparse.Namespace) -> int:
    quiet_grpc()
    if given.action == "drop-waiter" and given.job is None and given.request is None:
        raise CommandError("drop-waiter needs a JOB or --request; see timeslice evict drop-waiter --help", BAD_INPUT)
    from timeslice.cli.evict import evict

    return evict(given)


def _action(actions: Any, name: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=HelpFormatter
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="shown to the job and kept in the log")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser)
    add_target(parser)
    return parser


def _group(parser: argparse.ArgumentParser) -> None:
    completes_groups(parser.add_argument("group", metavar="GROUP", help="the group that it is about"))


EVICT = Command("evict", "end a lease, drop a waiter, kill a job, forget a node", DESCRIPTION, add_arguments, run)
