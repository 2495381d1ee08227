"""What NVML says of the accelerators, every 250 ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snapshot_agent_server.core.ids import AcceleratorId, GroupId
from snapshot_agent_server.core.outcomes import DriverState


@dataclass(frozen=True, slots=True)
class DeviceSample:
    accelerator: AcceleratorId
    index: int
    name: str
    total: int
    used: int
    utilization: float = 0.0
    """Share of the last sample period in which a kernel ran, 0 to 1."""
    processes: Mapping[int, int | None] = field(default_factory=dict)
    """Device memory by pid; None: NVML gives no figure ("N/A")."""


@dataclass(frozen=True, slots=True)
class Sample:
    taken_at: float
    """Monotonic, before the first question was asked."""
    devices: tuple[DeviceSample, ...] = ()
    states: Mapping[int, DriverState] = field(default_factory=dict)
    """The driver's answer for the pids that were asked for; one without an answer is missing."""


@dataclass(frozen=True, slots=True)
class AcceleratorView:
    """What the outside is told of an accelerator."""

    accelerator: AcceleratorId
    name: str
    total: int
    used: int
    utilization: float
    groups: tuple[GroupId, ...]
    unmanaged_pids: tuple[int, ...]
