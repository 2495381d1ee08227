"""Reads the arguments of `timeslice` and calls the command that they name."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from timeslice._settings import SettingsError
from timeslice.cli.command import Command, HelpFormatter, Parser
from timeslice.cli.completion_command import COMPLETION
from timeslice.cli.doctor_command import DOCTOR
from timeslice.cli.errors import BAD_INPUT, FAILED, CommandError
from timeslice.cli.evict_command import EVICT
from timeslice.cli.run_command import RUN
from timeslice.cli.status_command import STATUS
from timeslice.cli.up_command import UP
from timeslice.cli.watch_command import WATCH

COMMANDS: tuple[Command, ...] = (UP, RUN, STATUS, WATCH, EVICT, DOCTOR, COMPLETION)
"""In the order in which --help lists them. `demo` is another program, and reads its arguments itself."""

DESCRIPTION = """\
Reinforcement-learning jobs take turns on the same accelerators.

  timeslice up --group samplers=0 --group trainers=1
  timeslice watch
  timeslice COMMAND --help
"""


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="timeslice", description=DESCRIPTION, formatter_class=HelpFormatter)
    top.add_argument("--version", action="store_true", help="show the versions of timeslice, Python and grpcio")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        reader = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            formatter_class=HelpFormatter,
        )
        command.add_arguments(reader)
        reader.set_defaults(run=command.run)
    commands.add_parser("demo", help="run real RL jobs, alone and time-sliced, and compare", add_help=False)
    return top


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        CommandError: it cannot go on, or the arguments cannot be meant.
        SettingsError: an argument or variable cannot be.
        SystemExit: argparse has shown its help.
    """
    if arguments[:1] == ["demo"]:
        from timeslice.cli.demo import run_demo

        return run_demo(arguments[1:])
    top = parser()
    given = top.parse_args(arguments)
    if given.version:
        from timeslice.cli.versions import version_line

        print(version_line())
        return 0
    if given.command is None:
        top.error("no COMMAND is given")
    code: int = given.run(given)
    return code


def run() -> None:
    """The entry point: errors become one line and an exit code."""
    logging.basicConfig(level=logging.WARNING, format="timeslice: %(message)s", stream=sys.stderr)
    command = next((f" {word}" for word in sys.argv[1:2] if not word.startswith("-")), "")
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except (CommandError, SettingsError) as err:
        print(f"timeslice{command}: {err}", file=sys.stderr)
        code = err.exit_code if isinstance(err, CommandError) else BAD_INPUT
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `timeslice status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as err:
        if not _is_installation(err):
            raise
        print(f"timeslice{command}: {' '.join(str(err).split())}; see timeslice doctor", file=sys.stderr)
        code = FAILED
    sys.exit(code)


def _is_installation(error: Exception) -> bool:
    """Something is missing, or too old: generated code checks the versions of grpcio and protobuf when imported."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, ImportError) or any(name.endswith(("_pb2", "_pb2_grpc")) for name in modules)
