"""Watchdogs inside a job's own processes that take being saved for being stuck (row 43 of docs/design/failures.md).

While a job is saved its CPU threads run on, and whatever calls CUDA waits. PyTorch's NCCL watchdog asks CUDA how far
collectives are, so it stands still; its heartbeat monitor sees that and aborts the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MONITORING = "TORCH_NCCL_ENABLE_MONITORING"
HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
DEFAULT_HEARTBEAT_S = 480.0
"""Of PyTorch (ProcessGroupNCCL.cpp); releases before 2.5 or so wait 600 s."""
COLLECTIVE_TIMEOUT_S = 600.0
"""Default of init_process_group(timeout=) for NCCL. No variable sets it."""
_OFF = frozenset({"0", "n", "no", "f", "false"})
"""What PyTorch reads as no, in small letters."""


@dataclass(frozen=True)
class HeartbeatLimit:
    """How long a job may be saved before its own heartbeat monitor ends it."""

    seconds: float | None
    """None: for ever, the monitor is off."""
    source: str
    """Where the limit comes from, for people."""


def heartbeat_limit(env: Mapping[str, str]) -> HeartbeatLimit:
    """The limit in a job with this environment.

    Raises:
        ValueError: a variable has a value that PyTorch cannot read; the text names it.
    """
    if env.get(MONITORING, "1").strip().lower() in _OFF:
        return HeartbeatLimit(None, f"{MONITORING}={env[MONITORING]}")
    if not env.get(HEARTBEAT):
        return HeartbeatLimit(DEFAULT_HEARTBEAT_S, "PyTorch's default")
    try:
        return HeartbeatLimit(float(int(env[HEARTBEAT])), f"{HEARTBEAT}={env[HEARTBEAT]}")
    except ValueError:
        raise ValueError(f"{HEARTBEAT} is {env[HEARTBEAT]!r}, not a whole number of seconds") from None
