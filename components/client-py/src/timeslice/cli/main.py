"""Reads the arguments of `timeslice` and calls the command that they name."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from timeslice._settings import SettingsError
from timeslice.cli.errors import BAD_INPUT, CommandError

UP_HELP = """\
Start an orchestrator and a snapshot agent on this machine, and keep them until Ctrl-C.

Jobs of the same user find them by themselves. Without --group each GPU is a group of its own: gpu0, gpu1, ...
A GPU is an index ("0") or a UUID ("GPU-...").

  timeslice up
  timeslice up --group samplers=0 --group trainers=1
  timeslice up --group pool=0,1

Without a GPU, the same on mock GPUs:

  gpu-mock run -- timeslice up
"""

STATUS_HELP = """\
Show the groups: who holds them, who waits, whose memory is where, and what needs attention.

  timeslice status
  timeslice status --json
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="timeslice", description="Reinforcement-learning jobs take turns on the same accelerators."
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    up = commands.add_parser(
        "up",
        help="start orchestrator and snapshot agent on this machine",
        description=UP_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    up.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=GPU[,GPU...]",
        help="accelerators that jobs take together; may be repeated",
    )
    up.add_argument("--node", metavar="NAME", help="this machine's name (default: $TIMESLICE_NODE, else the host name)")
    up.add_argument(
        "--state-dir",
        metavar="DIR",
        help="leases, tokens and logs, kept between runs (default: $TIMESLICE_STATE_DIR, else below ~/.local/state)",
    )
    up.add_argument(
        "--listen", metavar="HOST:PORT", help="serve clients here too, besides the unix socket of this machine"
    )

    status = commands.add_parser(
        "status",
        help="show groups, holders and waiters",
        description=STATUS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument(
        "--target",
        metavar="ADDRESS",
        help="unix:PATH or HOST:PORT (default: $TIMESLICE_ORCH_ADDR, else this machine's own)",
    )

    commands.add_parser("demo", help="run real RL jobs, alone and time-sliced, and compare", add_help=False)
    return top


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        CommandError: it cannot go on.
        SettingsError: an argument or variable cannot be.
        SystemExit: argparse has shown its help or an error.
    """
    if arguments[:1] == ["demo"]:
        from timeslice.cli.demo import run_demo

        return run_demo(arguments[1:])
    given = parser().parse_args(arguments)
    if given.command == "up":
        from timeslice.cli.up import plan, up

        return up(plan(given.group, given.node, given.state_dir, given.listen, os.environ))
    from timeslice.cli.status import show_status

    return show_status(given.target, given.json)


def run() -> None:
    """The entry point: errors become one line and an exit code."""
    logging.basicConfig(level=logging.WARNING, format="timeslice: %(message)s", stream=sys.stderr)
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except (CommandError, SettingsError) as err:
        print(f"timeslice {command}: {err}", file=sys.stderr)
        code = err.exit_code if isinstance(err, CommandError) else BAD_INPUT
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `timeslice status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
