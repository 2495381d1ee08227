"""`timeslice completion`: the shells' scripts, made by shtab from the parser, and the groups that they ask for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from timeslice.cli.completing import FOLDERS, GROUPS, completion_of
from timeslice.cli.errors import CommandError

DEADLINE_S = 0.5
"""A person waits behind the Tab key."""

_GROUPS_FUNCTION = "_timeslice_groups"
_PREAMBLE = {
    "bash": f"""\
{_GROUPS_FUNCTION}() {{
  compgen -W "$(timeslice completion --groups 2>/dev/null)" -- "$1"
}}
""",
    "zsh": f"""\
{_GROUPS_FUNCTION}() {{
  local -a groups
  groups=(${{(f)"$(timeslice completion --groups 2>/dev/null)"}})
  compadd -a groups
}}
""",
    "fish": f"""\
function {_GROUPS_FUNCTION}
  timeslice completion --groups 2>/dev/null
end
""",
}


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """What the shell has to evaluate.

    Raises:
        CommandError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise CommandError("completion scripts are made by shtab; run: pip install 'timeslice-rl[cli]'") from None
    completers = {
        GROUPS: {"bash": _GROUPS_FUNCTION, "zsh": _GROUPS_FUNCTION, "fish": f"({_GROUPS_FUNCTION})"},
        FOLDERS: shtab.DIRECTORY,
    }
    for argument in _arguments(parser):
        if (kind := completion_of(argument)) is not None:
            argument.complete = completers[kind]  # type: ignore[attr-defined]  # Read by shtab.
    return shtab.complete(parser, shell=shell, preamble=_PREAMBLE[shell])


def group_names() -> list[str]:
    """The groups of the orchestrator that the environment names; none if it does not answer at once."""
    from timeslice._settings import SettingsError
    from timeslice.orchestrator.client import TimeSliceOrchestratorClient
    from timeslice.orchestrator.exceptions import OrchestratorError

    with contextlib.suppress(OrchestratorError, SettingsError):
        with TimeSliceOrchestratorClient(connect_timeout_s=DEADLINE_S) as client:
            return client.list_groups(DEADLINE_S)
    return []


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of the parser and of its commands."""
    for argument in parser._actions:
        yield argument
        if isinstance(argument, argparse._SubParsersAction):
            for command in argument.choices.values():
                yield from _arguments(command)
