"""What a command of `timeslice` is: how it is spelled, what it says of itself, and what does the work."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from timeslice.cli.errors import BAD_INPUT, CommandError


@dataclass(frozen=True)
class Command:
    """One command. Modules that define one import what is heavy (grpc, rich) only when it runs."""

    name: str
    summary: str
    """Half a line, for `timeslice --help`."""
    description: str
    """What it does, with at least one example: the first part of `timeslice NAME --help`."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Does it; returns the exit code, or raises CommandError or SettingsError."""


class HelpFormatter(argparse.HelpFormatter):
    """Fits a description's paragraphs to the terminal, but keeps its examples, which are indented."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 15  # argparse forgets that the names of commands are indented once more.

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(p if p.startswith(" ") else textwrap.fill(p, width) for p in paragraphs)


class Parser(argparse.ArgumentParser):
    """One line for what is wrong with the arguments, not a page. Options are spelled out: no prefix of them counts."""

    def __init__(self, *, allow_abbrev: bool = False, **options: object) -> None:
        super().__init__(allow_abbrev=allow_abbrev, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see {self.prog} --help", BAD_INPUT)


def quiet_grpc() -> None:
    """Keep grpc's own notes about connections that come and go off the screen. Before grpc is imported.

    Not for a command that starts programs of the user: they would inherit it.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def add_target(parser: argparse.ArgumentParser) -> None:
    """--target, which says where the orchestrator is."""
    parser.add_argument(
        "--target",
        metavar="ADDRESS",
        help="the orchestrator, unix:PATH or HOST:PORT (default: $TIMESLICE_ORCH_ADDR, else this machine's own)",
    )


def add_json(parser: argparse.ArgumentParser, what: str = "for programs") -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help=what)
