"""`timeslice doctor`, put together."""

from __future__ import annotations

from pathlib import Path

from timeslice.cli.doctor.findings import examine
from timeslice.cli.doctor.gather import gather
from timeslice.cli.doctor.machine import first_environment
from timeslice.cli.doctor.report import as_json, as_text, passes
from timeslice.cli.errors import FAILED


def doctor(target: str | None, agent: str | None, as_data: bool) -> int:
    """Print what was found; 1 if anything fails."""
    env = first_environment(Path("/proc/self/environ").read_bytes())
    findings = examine(gather(target, agent, env))
    print(as_json(findings) if as_data else "\n".join(as_text(findings)))
    return 0 if passes(findings) else FAILED
