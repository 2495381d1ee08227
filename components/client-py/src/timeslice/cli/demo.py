"""`timeslice demo`: hands over to the demo's own program, if it is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from timeslice.cli.errors import CommandError

NEEDED = ("timeslice_demo", "orchestrator", "snapshot_agent_server", "numpy", "sklearn")


def run_demo(arguments: Sequence[str]) -> int:
    """Become the demo. Does not return where it is installed.

    Raises:
        CommandError: it is not.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"the demo needs {', '.join(missing)}; run: pip install 'timeslice-rl[local]' (in a checkout of the"
            " repository: ./bazelw run //:demo)"
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "timeslice_demo.main", *arguments])
