"""What the core is told once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snapshot_agent_server.core.ids import AcceleratorId, GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Limits and delays, in seconds unless the name says otherwise."""

    groups: Mapping[GroupId, tuple[AcceleratorId, ...]]
    """Which accelerators belong together, at the start; in a cluster that changes. One is in at most one group."""
    is_in_cluster: bool = False
    """Pods and groups are told while the agent runs; those on record are taken up."""
    operation_timeout_s: float = 120.0
    """Deadline of a snapshot or restore that states none: 80 GB at the 2 GB/s that were measured, with room to spare
    for what is usual, not for the slowest."""
    lock_timeout_s: float = 10.0
    """How long the driver may drain submitted work."""
    lock_grace_s: float = 1.0
    """The driver keeps the lock's time limit itself; past that by this much, its worker is killed."""
    state_timeout_s: float = 2.0
    """A state query takes microseconds; one that hangs is known from drivers with a locked sibling."""
    unlock_timeout_s: float = 10.0
    rollback_timeout_s: float = 30.0
    """Time, past an operation's deadline, for the way back."""
    grace_s: float = 1.0
    """Past its deadline by this much an operation whose driver calls were abandoned is reported indeterminate."""
    retries: int = 3
    """A call that failed is tried again this often: "initialization error" was about 1 in 20 in public reports."""
    backoff_s: float = 0.05
    """Delay before the first retry; doubles with each."""
    max_backoff_s: float = 5.0
    after_wait_s: float = 2.0
    """How long an operation waits for the one named in after_operation_id to arrive: two calls that were sent at once
    may come in either order."""
    restore_margin_bytes: int | None = None
    """Free memory that a restore must leave on each GPU. None: 512 MiB, but at most a 16th of the device."""
    suspect_s: float = 60.0
    """How long the state of a process is watched after a call to it was abandoned."""
    channel_grace_s: float = 60.0
    """How long a workload whose process the agent cannot see may be without a connection: longer than the longest
    pause between two attempts to connect again, which is 45 s."""
    quiet_s: float = 0.01
    """A context in transition is published only if that lasts longer; the end of the operation always is, at once."""
    kept_operations: int = 10_000
    kept_for_s: float = 3600.0
    """Ended operations are remembered this long, for retries and for GetOperation."""
    allow_unfenced: bool = False

    def backoff(self, attempts: int) -> float:
        """The delay after `attempts` failures in a row."""
        return float(min(self.max_backoff_s, self.backoff_s * 2.0 ** max(0, min(attempts, 32) - 1)))
