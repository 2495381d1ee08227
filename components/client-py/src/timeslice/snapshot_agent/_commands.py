"""Carries out what the agent commands of a workload, one after the other, each once, in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import queue
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice._processes import start_time
from timeslice.snapshot_agent.adapters import WorkloadAdapter, mode_from_name, mode_name

logger = logging.getLogger("timeslice")

KEPT_RESULTS = 8
"""The agent sends the next command when it has the result of the one before: only the last can be in doubt."""

Reply = Callable[[pb2.WorkloadMessage], None]


class Offer:
    """What a workload can do, after its adapter or as its registration says instead."""

    def __init__(
        self,
        adapter: WorkloadAdapter,
        supported_modes: Sequence[str] | None,
        default_mode: str | None,
        tags: Sequence[str] | None,
    ) -> None:
        """
        Raises:
            ValueError: an unknown mode, none at all, or a default that is not supported.
        """
        modes = list(dict.fromkeys(map(mode_from_name, supported_modes or adapter.supported_modes)))
        default = mode_from_name(default_mode or adapter.default_mode)
        if default not in modes and default_mode is None:
            default = modes[0]
        if default not in modes:
            raise ValueError(f"default_mode {default_mode!r} is not among the modes that are supported:"
                             f" {', '.join(map(mode_name, modes))}")
        self.message = pb2.WorkloadCapabilities(
            supported_modes=modes, default_mode=default, tags=adapter.tags if tags is None else tags
        )


class Commands:
    """One workload's: what it was told, what it is at, and what came of the latest."""

    def __init__(
        self, job_id: str, adapter: WorkloadAdapter, offer: Offer, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """`loop`: where coroutines run that the adapter gives; None: each on a loop of its own."""
        self.capabilities = offer.message
        self._job_id, self._adapter, self._loop = job_id, adapter, loop
        self._id = str(uuid.uuid4())
        self._lock = threading.Lock()
        self._pending: list[str] = []
        """What has arrived and is not done, the one under way first; an agent sends one at a time."""
        self._saved = False
        self._results: OrderedDict[str, pb2.CommandResult] = OrderedDict()
        self._was_accepted = False
        self._reply: Reply | None = None
        self._waiting: queue.SimpleQueue[pb2.AgentCommand | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"timeslice callbacks {job_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Take no further command, and let the one under way come to its end, for so long at most."""
        self._waiting.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def connected(self, reply: Reply) -> pb2.WorkloadInstance:
        """A connection begins, on which results are to be sent; what the agent must know of those before it."""
        with self._lock:
            self._reply = reply
            return pb2.WorkloadInstance(
                id=self._id,
                pid=os.getpid(),
                start_time=start_time(os.getpid()) or 0,
                results=self._results.values(),
                running_command_id=self._pending[0] if self._pending else "",
                returns=self._was_accepted,
                saved=self._saved,
            )

    def accepted(self) -> None:
        with self._lock:
            self._was_accepted = True

    def take(self, command: pb2.AgentCommand) -> None:
        """A command came. One that came before is not carried out again."""
        with self._lock:
            known = self._results.get(command.command_id)
            if known is not None:
                self._send(known)
                return
            if command.command_id in self._pending:
                return
            self._pending.append(command.command_id)
        self._waiting.put(command)

    # The thread.

    def _run(self) -> None:
        while (command := self._waiting.get()) is not None:
            error = self._carry_out(command)
            result = pb2.CommandResult(command_id=command.command_id, ok=error is None, error=error or "")
            with self._lock:
                self._pending.remove(command.command_id)
                if error is None:
                    self._saved = command.WhichOneof("command") == "snapshot"
                self._results[command.command_id] = result
                while len(self._results) > KEPT_RESULTS:
                    self._results.popitem(last=False)
                self._send(result)

    def _send(self, result: pb2.CommandResult) -> None:
        """On the connection that there is now. Should it be broken, the next one begins with all results."""
        if self._reply is not None:
            self._reply(pb2.WorkloadMessage(result=result))

    def _carry_out(self, command: pb2.AgentCommand) -> str | None:
        """Why it failed; None: it is done. Whatever a callback raises, this thread lives on."""
        kind = command.WhichOneof("command")
        try:
            if kind == "snapshot":
                wanted = command.snapshot.mode or self.capabilities.default_mode
                if wanted not in self.capabilities.supported_modes:
                    supported = ", ".join(map(mode_name, self.capabilities.supported_modes))
                    return f"mode {wanted} is not supported; supported are {supported}"
                self._finish(self._adapter.snapshot(mode_name(wanted), list(command.snapshot.tags)))
            elif kind == "restore":
                self._finish(self._adapter.restore(list(command.restore.tags)))
            else:
                return "this client does not know the command; upgrade timeslice-rl"
        except BaseException as err:
            logger.warning("job %s: the %s callback failed", self._job_id, kind, exc_info=True)
            return f"{type(err).__name__}: {err}"
        return None

    def _finish(self, outcome: Any) -> None:
        """Wait for what a callback has only begun."""
        if not inspect.isawaitable(outcome):
            return
        if self._loop is None:
            asyncio.run(_awaited(outcome))
        elif self._loop.is_closed():
            if inspect.iscoroutine(outcome):
                outcome.close()
            raise RuntimeError("the event loop that was running at the registration is closed; register again")
        else:
            asyncio.run_coroutine_threadsafe(_awaited(outcome), self._loop).result()


async def _awaited(outcome: Any) -> None:
    await outcome


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
