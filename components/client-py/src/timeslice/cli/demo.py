"""`timeslice demo`: hands over to the demo's own program, if it is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from timeslice.cli.errors import CommandError


def run_demo(arguments: Sequence[str]) -> int:
    """Become the demo. Does not return where it is installed.

    Raises:
        CommandError: it is not.
    """
    if importlib.util.find_spec("timeslice_demo") is None:
        raise CommandError(
            "the demo is not installed here; in a checkout of the repository run: ./bazelw run //:demo"
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "timeslice_demo.main", *arguments])
