"""Processes by pidfd: their end is told without polling, and no pid that is used again is mistaken for the old one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from snapshot_agent_server.core.ids import ProcessId
from snapshot_agent_server.processes.proc import is_same


def kill(process: ProcessId) -> bool:
    """Send SIGKILL; False: that process has ended already. PermissionError: it is another user's by now.

    The signal goes to what the descriptor holds, never to a pid: a later process with this pid is safe.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_same(process):  # looked at only now: the descriptor holds the pid's owner of this moment
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


class ProcessEnds:
    """Calls back once for each watched process that has ended, from the event loop."""

    def __init__(self, ended: Callable[[ProcessId], None]) -> None:
        self._ended = ended
        self._fds: dict[ProcessId, int] = {}

    def watch(self, process: ProcessId) -> None:
        """A second time does nothing. A process that has gone already is reported soon."""
        if process in self._fds:
            return
        loop = asyncio.get_running_loop()
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            loop.call_soon(self._ended, process)
            return
        if not is_same(process):  # looked at only now: the descriptor holds the pid's owner of this moment
            os.close(fd)
            loop.call_soon(self._ended, process)
            return
        self._fds[process] = fd
        loop.add_reader(fd, self._readable, process)

    def close(self) -> None:
        for process in list(self._fds):
            self._drop(process)

    def _readable(self, process: ProcessId) -> None:
        self._drop(process)
        self._ended(process)

    def _drop(self, process: ProcessId) -> None:
        fd = self._fds.pop(process)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
