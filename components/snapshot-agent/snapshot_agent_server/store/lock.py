"""One agent for each state folder: whoever holds the lock on DIR/agent.lock, which the kernel ends with the process."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from pathlib import Path

from snapshot_agent_server import logs

log = logging.getLogger("snapshot_agent")


class StoreError(Exception):
    """The folder or the file cannot be used. The text says what to do."""


class InUse(StoreError):
    """Another agent has the folder."""

    def __init__(self, folder: Path, other: str) -> None:
        super().__init__(
            f"another snapshot agent (process {other}) uses the state folder {folder}; stop it, or choose another with"
            " --state-dir"
        )
        self.other = other


def take(folder: Path) -> int:
    """The folder, made if need be, is this process's until the descriptor is closed. Raises: StoreError."""
    fd = _opened(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = _holder(fd)
        os.close(fd)
        raise InUse(folder, other) from None
    _sign(fd)
    return fd


async def take_over(folder: Path, patience_s: float) -> int:
    """As `take`, but another agent that has the folder is given time to end: in a rolling update the new one may come
    while the old one still finishes what is under way.

    Raises: InUse after `patience_s`; StoreError.
    """
    try:
        return take(folder)
    except InUse as error:
        text = f"waits up to {patience_s:g} s for another snapshot agent (process {error.other}) to end"
        logs.transition(log, logging.WARNING, text, state_dir=str(folder))
    fd = _opened(folder)
    loop = asyncio.get_running_loop()
    locked = loop.create_future()

    def wait() -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            loop.call_soon_threadsafe(_hand_over, locked, fd)
        except RuntimeError:  # nobody waits any more; the process is about to end
            os.close(fd)

    # The kernel wakes who waits for a lock. A daemon: nothing ends that wait, so the process must not wait for it.
    threading.Thread(target=wait, name="wait for the state folder", daemon=True).start()
    try:
        async with asyncio.timeout(patience_s):
            await locked
    except TimeoutError:
        raise InUse(folder, _holder(fd)) from None
    _sign(fd)
    return fd


def _hand_over(locked: asyncio.Future[None], fd: int) -> None:
    if locked.done():  # given up meanwhile
        os.close(fd)
    else:
        locked.set_result(None)


def _opened(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"the state folder {folder} cannot be written ({error.strerror}); choose another with --state-dir"
        ) from error


def _holder(fd: int) -> str:
    return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"


def _sign(fd: int) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
