"""The backend `cuda`: contexts are saved by the CUDA driver, process by process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.outcomes import Gone, Outcome, Stopped, Verb
from snapshot_agent_server.driver.interface import Answered, Driver, Program
from snapshot_agent_server.processes import proc


class CudaBackend:
    def __init__(self, driver: Driver, proc_root: Path = Path("/proc")) -> None:
        self._driver = driver
        self._proc = proc_root

    def begin(self, call: CallDriver, answered: Answered) -> Program | None:
        """Make a driver call and what follows it, if the process is still that process and can answer.

        None: the driver was not asked; the answer comes all the same.
        """
        why_not = self._objection(call)
        if why_not is None:
            return self._driver.begin(call, answered)
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
