"""A folder that one `timeslice up` at a time may use. The kernel drops the claim with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from timeslice._settings import SettingsError
from timeslice.cli.errors import CommandError

LOCK_NAME = "up.lock"


@contextlib.contextmanager
def claimed(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder; the lock's file goes with the claim.

    Raises:
        CommandError: another process holds it; the text says which.
        SettingsError: the folder cannot be written.
    """
    path = folder / LOCK_NAME
    descriptor = _lock(path, what)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # While it is still locked: who comes next locks a file of their own.
        os.close(descriptor)


def _lock(path: Path, what: str) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise SettingsError(f"cannot write to {what} {path.parent} ({err.strerror}); choose another one") from err
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise CommandError(
                f"timeslice up runs already (pid {pid}) with {what} {path.parent};"
                f" stop it first (kill {pid}), or give this one TIMESLICE_RUNTIME_DIR and --state-dir of its own"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # Locked a file that its owner was just removing: try again.
