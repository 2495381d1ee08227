"""Which arguments a shell can complete with more than words of our own: groups are asked of the orchestrator."""

from __future__ import annotations

import argparse

GROUPS_FUNCTION = "_timeslice_groups"
"""The shell function, the same in every shell, that names the groups."""


def completes_groups(argument: argparse.Action) -> argparse.Action:
    """Have shells complete group ids here. Returns the argument."""
    argument.complete = {  # type: ignore[attr-defined]  # Read by shtab.
        "bash": GROUPS_FUNCTION,
        "zsh": GROUPS_FUNCTION,
        "fish": f"({GROUPS_FUNCTION})",
    }
    return argument
