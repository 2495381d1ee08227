"""The backend `cuda`: contexts are saved by the CUDA driver, process by process."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.ids import ProcessId
from snapshot_agent_server.core.outcomes import Gone, Outcome, Stopped, Verb
from snapshot_agent_server.driver.interface import Answered, Driver, Program
from snapshot_agent_server.processes import proc

LOOK_S = 0.02
"""How long what /proc said of a process is good for: a disk's time for a record, and far too short for its pid to come
to another process."""


class CudaBackend:
    def __init__(
        self, driver: Driver, proc_root: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._proc = proc_root
        self._clock = clock
        self._looked: dict[ProcessId, tuple[float, Verb, Outcome | None]] = {}
        """Of calls that are about to be made: when /proc was asked, for which, and what is against it."""

    def look(self, call: CallDriver) -> None:
        """Ask /proc what `begin` would, while the call waits for something else. It asks again if that took long."""
        self._looked[call.process] = self._clock(), call.verb, self._objection(call)

    def begin(self, call: CallDriver, answered: Answered, *, is_held: bool = False) -> Program | None:
        """Make a driver call and what follows it, if the process is still that process and can answer; `is_held`: see
        Driver.begin.

        None: the driver was not asked; the answer comes all the same.
        """
        looked_at, verb, why_not = self._looked.pop(call.process, (-math.inf, call.verb, None))
        if verb is not call.verb or self._clock() > looked_at + LOOK_S:
            why_not = self._objection(call)
        if why_not is None:
            return self._driver.begin(call, answered, is_held=is_held)
        asyncio.get_running_loop().call_soon(answered, call, why_not, None)
        return None

    def _objection(self, call: CallDriver) -> Outcome | None:
        found = proc.facts(call.process.pid, self._proc)
        if found is None or found.id != call.process or found.has_ended:
            return Gone()
        if call.verb is not Verb.STATE and found.stopped:
            return Stopped(found.stopped)
        if call.verb is Verb.LOCK and proc.is_frozen(call.process.pid, self._proc):
            return Stopped("frozen by its cgroup")
        return None
