"""`timeslice completion`: its arguments."""

from __future__ import annotations

import argparse

from timeslice.cli.command import Command, quiet_grpc
from timeslice.cli.errors import BAD_INPUT, CommandError

SHELLS = ("bash", "zsh", "fish")
DESCRIPTION = """\
Print a script that has a shell complete commands, options and the names of groups (asked of the orchestrator).

  timeslice completion bash > ~/.local/share/bash-completion/completions/timeslice
  timeslice completion zsh > ~/.zfunc/_timeslice      # a folder of $fpath
  timeslice completion fish > ~/.config/fish/completions/timeslice.fish

For this shell alone: eval "$(timeslice completion bash)", the same in zsh, or timeslice completion fish | source
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--groups", action="store_true", help=argparse.SUPPRESS)  # What the scripts call.


def run(given: argparse.Namespace) -> int:
    quiet_grpc()
    from timeslice.cli.completion import group_names, script

    if given.groups:
        print("\n".join(group_names()))
        return 0
    if given.shell is None:
        raise CommandError("which shell? one of " + ", ".join(SHELLS), BAD_INPUT)
    from timeslice.cli.main import parser

    print(script(given.shell, parser()))
    return 0


COMPLETION = Command("completion", "print a script for the completion of a shell", DESCRIPTION, add_arguments, run)
