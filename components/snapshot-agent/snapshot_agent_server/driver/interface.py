"""What the agent asks of the CUDA driver and of NVML: `cuda_driver.CudaDriver`, and `fake.FakeDriver` in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.outcomes import Abandoned, DriverState, Outcome
from snapshot_agent_server.core.samples import Sample

Answered = Callable[[CallDriver, Outcome, CallDriver | None], None]
"""Told of each call of a program when it is over, and which next one is under way."""


class DriverMissing(Exception):
    """There is no driver here, or it does not start. The text says what to do."""


class Program(Protocol):
    """Calls under way, of which each follows the one before."""

    def stop(self) -> None:
        """Begin no further call, as long as the next one has not begun: `answered` says whether it has."""
        ...

    def release(self) -> None:
        """Let the calls go on that it holds; see Driver.begin."""
        ...


class Driver(Protocol):
    """Calls may run side by side. None raises for what the driver says: that is in the outcome.

    A call that does not answer in time is `Abandoned`: whatever runs it is killed, and it may still take effect in the
    target.
    """

    def begin(self, call: CallDriver, answered: Answered, *, is_held: bool = False) -> Program:
        """Start a call, and behind it those of `call.then`: each only if the one before it is Done, the process lives
        and is not stopped, and its `not_after` has not come. `answered` is called from the loop, later.

        `is_held`: a call of `then` that may not go ahead of an order waits for `Program.release`, as long as it may
        begin at all; what came of the one before is told when that is decided.

        - STATE: where the process is. One that has not initialised CUDA: Refused with INVALID_VALUE.
        - LOCK: stop a process from touching the device and wait for the work it has launched. Past `lock_timeout_ms`:
          Refused with NOT_READY, and the process runs on. Raises ValueError unless that is above 0, since the driver
          takes 0 as "wait for ever". Source: CUDA driver API, CUcheckpointLockArgs.timeoutMs.
        - CHECKPOINT: move a locked process's device memory to the host. `Done.usage`: how much left each of
          `accelerators`, by NVML's figure for the process or, where it has none, by what became free meanwhile.
        - RESTORE: move it back; the process stays locked. Not tried, NoRoom, unless each accelerator in `need` shows
          that much free and `margin` bytes more; margin None: 512 MiB, but at most a 16th of the device.
        - UNLOCK: let a locked process go on.
        """
        ...

    async def states(self, pids: Sequence[int], timeout_s: float) -> Mapping[int, DriverState] | Abandoned:
        """The states of several processes in one call; one for which the driver had an error is missing."""
        ...

    async def sample(self, pids: Sequence[int], timeout_s: float) -> Sample | Abandoned:
        """NVML's view of all accelerators, in index order, then the driver's states of `pids`."""
        ...

    async def close(self) -> None:
        """End what runs the calls; none is told of any more. Waits for nothing in the driver."""
        ...


async def outcome_of(driver: Driver, call: CallDriver) -> Outcome:
    """Make one call and wait for what comes of it."""
    answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def answered(_: CallDriver, outcome: Outcome, __: CallDriver | None) -> None:
        if not answer.done():
            answer.set_result(outcome)

    driver.begin(call, answered)
    return await answer
