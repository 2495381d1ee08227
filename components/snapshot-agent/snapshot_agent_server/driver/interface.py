"""What the agent asks of the CUDA driver and of NVML: `cuda_driver.CudaDriver`, and `fake.FakeDriver` in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.outcomes import Abandoned, Done, DriverState, NoRoom, Refused
from snapshot_agent_server.core.samples import Sample


class DriverMissing(Exception):
    """There is no driver here, or it does not start. The text says what to do."""


class Driver(Protocol):
    """Calls may run side by side. None raises for what the driver says: that is in the outcome.

    A call that does not answer in `timeout_s` is `Abandoned`: whatever runs it is killed, and it may still take effect
    in the target. Cancelling a call abandons it too.
    """

    async def state(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        """Where the process is. A process that has not initialised CUDA: Refused with INVALID_VALUE."""
        ...

    async def lock(self, pid: int, lock_timeout_ms: int, timeout_s: float) -> Done | Refused | Abandoned:
        """Stop a process from touching the device and wait for the work it has launched.

        Args:
            lock_timeout_ms: above 0, since the driver takes 0 as "wait for ever". Past it: Refused with NOT_READY, and
                the process runs on.
        Source: CUDA driver API, CUcheckpointLockArgs.timeoutMs.
        """
        ...

    async def checkpoint(
        self, pid: int, accelerators: Sequence[AcceleratorId], timeout_s: float
    ) -> Done | Refused | Abandoned:
        """Move a locked process's device memory to the host. `Done.usage`: how much left each of these accelerators,
        by NVML's figure for the process or, where it has none, by what became free meanwhile."""
        ...

    async def restore(
        self, pid: int, need: Mapping[AcceleratorId, int], margin: int | None, timeout_s: float
    ) -> Done | Refused | NoRoom | Abandoned:
        """Move it back; the process stays locked. Not tried, NoRoom, unless each accelerator in `need` shows that much
        free and `margin` bytes more; margin None: 512 MiB, but at most a 16th of the device."""
        ...

    async def unlock(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        """Let a locked process go on."""
        ...

    async def states(self, pids: Sequence[int], timeout_s: float) -> Mapping[int, DriverState] | Abandoned:
        """The states of several processes in one call; one for which the driver had an error is missing."""
        ...

    async def sample(self, pids: Sequence[int], timeout_s: float) -> Sample | Abandoned:
        """NVML's view of all accelerators, in index order, then the driver's states of `pids`."""
        ...

    async def close(self) -> None:
        """End what runs the calls. Waits for nothing in the driver."""
        ...


DEFAULT_MARGIN_BYTES = 512 << 20


def margin_bytes(margin: int | None, total: int) -> int:
    """The free memory that a restore must leave on a device of this size."""
    return min(DEFAULT_MARGIN_BYTES, total // 16) if margin is None else margin
