"""What the mock says of its devices: read through its command, whose layout of the shared state fits the libraries'."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_S = 60.0
"""Filling 64 MiB takes 30 ms on an idle machine."""


class MockError(Exception):
    """The command gpu-mock failed. The text has its words."""


@dataclass(frozen=True, slots=True)
class MockDevice:
    """One mock GPU of this node."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    is_lost: bool
    """Every call that touches it fails (gpu-mock inject device-lost)."""


@dataclass(frozen=True, slots=True)
class MockNode:
    """The mock GPUs of this node, and the versions that their driver claims to have."""

    devices: tuple[MockDevice, ...]
    driver_version: str
    """As NVIDIA writes it: 580.82.07"""
    cuda_version: int
    """As the driver says it: 13000"""


def run(program: Path, state: Path, *arguments: str) -> str:
    """Run the command on the devices in `state`; return what it printed.

    Raises:
        MockError: it failed, or is not there.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMESLICE_GPU_MOCK")}
    try:
        done = subprocess.run(
            [program, *arguments], env={**kept, "TIMESLICE_GPU_MOCK_DIR": str(state)},
            capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MockError(f"{program} {' '.join(arguments)}: {error}") from error
    if done.returncode:
        raise MockError(f"gpu-mock {' '.join(arguments)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def look(program: Path, state: Path) -> MockNode:
    """The devices as they are now.

    Raises:
        MockError: there are none, or they are of another version.
    """
    return from_json(json.loads(run(program, state, "show", "--json")))


def from_json(shown: dict[str, Any]) -> MockNode:
    """What `gpu-mock show --json` printed, as ours."""
    return MockNode(
        devices=tuple(
            MockDevice(one["index"], one["uuid"], one["name"], one["memory_bytes"], bool(one["lost"]))
            for one in shown["devices"]
        ),
        driver_version=shown["driver_version"],
        cuda_version=shown["cuda_version"],
    )
