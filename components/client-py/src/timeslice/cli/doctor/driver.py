"""Asks the driver about itself, in a child that may hang."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

from timeslice.cli.doctor.facts import Device, DriverFacts

DEADLINE_S = 30.0
"""cuInit takes some seconds on a machine with many GPUs, more where nothing keeps the driver loaded."""


def probe_driver(
    deadline_s: float = DEADLINE_S, command: tuple[str, ...] = ("-m", "timeslice.cli.doctor.driver_probe")
) -> DriverFacts:
    """What the driver says of itself; at the latest after `deadline_s`, with the step in which it is stuck."""
    child = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, complaint = child.communicate(timeout=deadline_s)
        is_stuck = False
    except subprocess.TimeoutExpired as err:
        child.kill()
        said, complaint, is_stuck = _text(err.stdout), "", True
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Not waited for at length: a process inside the kernel's driver does not end before that does.
            said, _ = child.communicate(timeout=1.0)
    found = _merged(said)
    step = found.pop("step", None)
    facts = {**found, "devices": tuple(_device(device) for device in found.get("devices", ()))}
    facts["missing_calls"] = tuple(found.get("missing_calls", ()))
    if is_stuck:
        return DriverFacts(**facts, stuck_in=step or "starting Python", deadline_s=deadline_s)
    if child.returncode:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        last = (complaint.strip().splitlines() or [""])[-1]
        return DriverFacts(**facts, crash=f"{how} in {step or 'the end'}{': ' + last if last else ''}")
    return DriverFacts(**facts)


def _merged(said: str) -> dict[str, Any]:
    """All lines together, the later ones first; a line that is cut off counts for nothing."""
    found: dict[str, Any] = {}
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            found.update(json.loads(line))
    return found


def _device(said: dict[str, Any]) -> Device:
    persistence = said.pop("persistence", None)
    return Device(**said, persistence=None if persistence is None else bool(persistence))


def _text(output: Any) -> str:
    if output is None:
        return ""
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output)
