"""The text of a restore that was not tried for lack of device memory."""

from __future__ import annotations

from collections.abc import Sequence

from snapshot_agent_server.core.outcomes import Room
from snapshot_agent_server.core.registry import Registry

MIB = 1 << 20


def no_room_text(pid: int, short: Sequence[Room], registry: Registry) -> str:
    """Names what is missing on each accelerator, and who is resident there: jobs by name, others by pid."""
    return f"restore of process {pid} not tried: " + "; ".join(_one(room, registry) for room in short)


def _one(room: Room, registry: Registry) -> str:
    residents = []
    for pid, size in sorted(room.resident.items()):
        key = registry.key_of(pid)
        who = f"job {key.job!r} (process {pid})" if key is not None else f"process {pid} of no known job"
        residents.append(f"{who} {'an unknown amount' if size is None else _mib(size)}")
    where = f"{_mib(room.free)} of {_mib(room.total)} free on {room.accelerator}, needed {_mib(room.needed)}"
    return f"{where}; resident there: {', '.join(residents) or 'nothing that NVML shows'}"


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
