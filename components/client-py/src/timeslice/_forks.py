"""What a fork does to grpc, and what the clients do about it.

grpc's threads do not exist in a forked child. It copes with that where GRPC_ENABLE_FORK_SUPPORT was set when it was
imported (`timeslice/__init__.py` sets it), and never while one of its asyncio channels is open. Where it does not, the
child is told so instead of hanging or crashing at its first call.

Where it does, it halts its threads before a fork, and one that waits for events of a channel notices only when it looks
up, once a second. A call that ends at once is such an event: with it a fork takes 3 ms where it took 1000.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc._cython import cygrpc

from timeslice._processes import REGISTERED

logger = logging.getLogger("timeslice")

NUDGE = "/timeslice.Nudge/Nudge"
"""No server knows it."""
SETTLE_S = 0.003
"""For grpc's threads to come back from an earlier fork and to deal with the nudges. Of forks in a row on a busy
machine, 3 of 4500 left a child waiting in grpc 1.81's own hook without this, 2 of 12000 with it; none did with 1.85."""

INSTEAD = "start processes with the multiprocessing method 'spawn' or 'forkserver', or as commands"


class GrpcUnusableError(RuntimeError):
    """grpc cannot be used in this process. The text says why, and what to do."""


class Forking(Protocol):
    """What takes part in a fork."""

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
        self._channels: weakref.WeakSet[grpc.Channel] = weakref.WeakSet()
        self._nudges: list[Any] = []
        self._anchor: grpc.Channel | None = None
        """Never used, never closed: with its last channel grpc ends, in a thread of its own, and a child that is forked
        meanwhile waits for ever for that thread's lock (seen: 5 of 150 that were forked right after a close)."""
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
        """Let this one start afresh in children, as long as it exists."""
        with self._lock:
            self._participants.add(participant)

    def channel_opened(self, channel: grpc.Channel | None = None) -> None:
        """A channel is open, an asyncio one if none is given: forks matter from now on.

        Our hooks follow grpc's own, so that they run before these.
        """
        with self._lock:
            if channel is not None:
                self._channels.add(channel)
            if self._anchor is None:
                self._anchor = grpc.insecure_channel("unix:/nobody")
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
        self._nudges = []
        _halt_grpc_threads()
        for channel in list(self._channels):
            nudge: Any = channel.unary_unary(NUDGE)
            with contextlib.suppress(ValueError):  # It is closed.
                self._nudges.append(nudge.future(b"", timeout=0.0))
        if self._nudges:
            time.sleep(SETTLE_S)

    def _in_parent(self) -> None:
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
        self._channels = weakref.WeakSet()
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


def _halt_grpc_threads() -> None:
    """Have grpc's threads halt at their next event, as its own hook does a moment later.

    Without this, a thread may have dealt with its nudge, and wait on for a second, before grpc's hook runs. The name is
    private: should it go, forks are slow again.
    """
    state = getattr(cygrpc, "_fork_state", None)
    if state is not None and state.fork_handler_registered:
        with state.fork_in_progress_condition:
            state.fork_in_progress = True


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
