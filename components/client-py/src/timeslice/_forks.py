"""What a fork does to grpc, and what the clients do about it.

grpc's threads do not exist in a forked child. It copes with that where GRPC_ENABLE_FORK_SUPPORT was set when it was
imported (`timeslice/__init__.py` sets it), and never while one of its asyncio channels is open. Where it does not, the
child is told so instead of hanging or crashing at its first call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from pathlib import Path
from typing import Protocol

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from timeslice._processes import REGISTERED

logger = logging.getLogger("timeslice")

PAUSE_S = 1.0
"""For sessions' streams to end before a fork: with one open, grpc's own preparation takes up to a second."""

INSTEAD = "start processes with the multiprocessing method 'spawn' or 'forkserver', or as commands"


class GrpcUnusableError(RuntimeError):
    """grpc cannot be used in this process. The text says why, and what to do."""


class Forking(Protocol):
    """What takes part in a fork."""

    def pause_for_fork(self) -> None:
        """End what keeps grpc's threads busy, or begin to."""

    def wait_paused(self, timeout_s: float) -> None:
        """Wait until it has ended."""

    def go_on_in_parent(self) -> None:
        """Resume."""

    def start_afresh_in_child(self) -> None:
        """Forget the parent's locks, threads, sessions and channel."""


class _Forks:
    """This process's part: who takes part, and why grpc cannot be used here, if so."""

    def __init__(self) -> None:
        self.unusable: str | None = None
        self.aio_channels = 0
        """How many asyncio channels of ours are open."""
        self._lock = threading.Lock()
        """Held from before a fork until after it, so that no half-made change is copied."""
        self._participants: weakref.WeakSet[Forking] = weakref.WeakSet()
        self._is_hooked = False
        self._pid = os.getpid()
        self._grpc_ran = False
        self._said_aio = False

    def check_usable(self) -> None:
        """
        Raises:
            GrpcUnusableError: this process was forked, and grpc did not survive that.
        """
        if self.unusable is not None:
            raise GrpcUnusableError(self.unusable)

    def take_part(self, participant: Forking) -> None:
        """Pause and resume this one at forks, as long as it exists."""
        with self._lock:
            self._participants.add(participant)

    def channel_opened(self) -> None:
        """A channel is open: forks matter from now on. Our hooks follow grpc's own, so that they run before these."""
        with self._lock:
            self._hook()

    def watch_foreign_use(self) -> None:
        """grpc was imported without fork support: what others do with it matters, too."""
        with self._lock:
            self._hook()

    def _hook(self) -> None:
        if not self._is_hooked:
            self._is_hooked = True
            os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def _before(self) -> None:
        self._lock.acquire()
        if not cygrpc.is_fork_support_enabled():
            self._grpc_ran = _grpc_has_threads()
            return
        for participant in list(self._participants):
            participant.pause_for_fork()
        for participant in list(self._participants):
            participant.wait_paused(PAUSE_S)

    def _in_parent(self) -> None:
        if cygrpc.is_fork_support_enabled():
            for participant in list(self._participants):
                participant.go_on_in_parent()
        self._lock.release()
        if self.aio_channels and not self._said_aio:
            self._said_aio = True
            logger.warning(
                "this process forks while an asyncio client is open, which grpc does not support: the child may crash,"
                " and cannot use timeslice; %s", INSTEAD
            )

    def _in_child(self) -> None:
        self._lock = threading.Lock()
        parent, self._pid = self._pid, os.getpid()
        if self.unusable is None:
            self.unusable = self._why_unusable(parent)
        self.aio_channels = 0
        REGISTERED.start_afresh()
        for participant in list(self._participants):
            participant.start_afresh_in_child()

    def _why_unusable(self, parent: int) -> str | None:
        forked = f"process {self._pid} was forked from {parent}, where grpc was in use"
        if self.aio_channels:
            return (
                f"{forked} by an asyncio client: grpc's asyncio side does not survive a fork. Close the asyncio clients"
                f" before the fork, or {INSTEAD}"
            )
        if self._grpc_ran:
            return (
                f"{forked} without fork support: it was imported before timeslice, or GRPC_ENABLE_FORK_SUPPORT is not"
                " 1. Import timeslice before grpc, or set GRPC_ENABLE_FORK_SUPPORT=1 before the program starts, or"
                f" {INSTEAD}"
            )
        return None


def _grpc_has_threads() -> bool:
    """True if grpc runs in this process, whoever uses it."""
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            if task.read_text().startswith(("grpc_", "event_engine", "resolver-execut", "default-executo")):
                return True
    return False


FORKS = _Forks()
if not cygrpc.is_fork_support_enabled():
    FORKS.watch_foreign_use()
