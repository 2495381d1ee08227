"""Runs a server of ours and notes each event of its core: python -m timeslice_benchmarks.traced FILE MODULE ARG...

Both cores are pure: whatever happens in a server passes through one method as an event. So noting its calls shows every
hop, and costs a few microseconds each. What was noted is written to FILE when the server ends.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

CORES = {
    "orchestrator": ("orchestrator.core.orchestrator", "Orchestrator"),
    "snapshot_agent_server": ("snapshot_agent_server.core.node", "Node"),
}
DETAILS = ("kind", "verb", "operation", "version")
"""Fields of events that tell them apart."""


def note_events(module: str, noted: list[tuple[int, int, str, dict[str, str]]]) -> None:
    """From now on the core of this server notes (begin, end, event, details) of each event, CLOCK_MONOTONIC in ns."""
    home, name = CORES[module]
    core = getattr(__import__(home, fromlist=[name]), name)
    handle = core.handle

    def noting(self: Any, event: Any, now: float) -> Any:
        begin_ns = time.monotonic_ns()
        try:
            return handle(self, event, now)
        finally:
            end_ns = time.monotonic_ns()
            for one in getattr(event, "events", (event,)):  # several that came together
                details = {field: str(getattr(one, field)) for field in DETAILS if hasattr(one, field)}
                noted.append((begin_ns, end_ns, type(one).__name__, details))

    core.handle = noting


def main() -> None:
    file, module, *arguments = sys.argv[1:]
    noted: list[tuple[int, int, str, dict[str, str]]] = []
    note_events(module, noted)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        Path(file).write_text(json.dumps(noted), encoding="utf-8")


if __name__ == "__main__":
    main()
