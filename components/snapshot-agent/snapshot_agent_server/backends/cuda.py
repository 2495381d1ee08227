"""The backend `cuda`: contexts are saved by the CUDA driver, process by process."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.outcomes import Gone, Outcome, Stopped, Verb
from snapshot_agent_server.driver.interface import Driver
from snapshot_agent_server.processes import proc


class CudaBackend:
    def __init__(self, driver: Driver, proc_root: Path = Path("/proc")) -> None:
        self._driver = driver
        self._proc = proc_root

    async def call(self, call: CallDriver) -> Outcome:
        """Make one driver call, if the process is still that process and can answer."""
        pid = call.process.pid
        found = proc.facts(pid, self._proc)
        if found is None or found.id != call.process or found.has_ended:
            return Gone()
        if call.verb is not Verb.STATE and found.stopped:
            return Stopped(found.stopped)
        if call.verb is Verb.LOCK and proc.is_frozen(pid, self._proc):
            return Stopped("frozen by its cgroup")
        match call.verb:
            case Verb.STATE:
                return await self._driver.state(pid, call.timeout_s)
            case Verb.LOCK:
                return await self._driver.lock(pid, call.lock_timeout_ms, call.timeout_s)
            case Verb.CHECKPOINT:
                return await self._driver.checkpoint(pid, call.accelerators, call.timeout_s)
            case Verb.RESTORE:
                return await self._driver.restore(pid, call.need or {}, call.margin, call.timeout_s)
            case Verb.UNLOCK:
                return await self._driver.unlock(pid, call.timeout_s)
            case _:
                assert_never(call.verb)
