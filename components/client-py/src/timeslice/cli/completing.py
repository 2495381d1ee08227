"""Which arguments a shell completes with more than our own words. `completion` tells it to the shells."""

from __future__ import annotations

import argparse

GROUPS, FOLDERS = "groups", "folders"
_MARK = "timeslice_completes"


def completes_groups(argument: argparse.Action) -> argparse.Action:
    """Have shells complete group ids here, which they ask of the orchestrator. Returns the argument."""
    setattr(argument, _MARK, GROUPS)
    return argument


def completes_folders(argument: argparse.Action) -> argparse.Action:
    """Have shells complete folders here. Returns the argument."""
    setattr(argument, _MARK, FOLDERS)
    return argument


def completion_of(argument: argparse.Action) -> str | None:
    """GROUPS, FOLDERS, or None for nothing in particular."""
    mark: str | None = getattr(argument, _MARK, None)
    return mark
