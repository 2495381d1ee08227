"""Waiting for a change in a folder (inotify): the kubelet's restarts and the installer's work are seen there."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from enum import IntFlag
from pathlib import Path
from types import TracebackType

_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class Change(IntFlag):
    """What happened to a name in the folder. Source: inotify(7)."""

    ATTRIBUTES = 0x4
    MOVED_AWAY = 0x40
    MOVED_HERE = 0x80
    CREATED = 0x100
    DELETED = 0x200
    OVERFLOW = 0x4000
    """Events were lost; which ones is unknown."""
    FOLDER_GONE = 0x8000


_WANTED = Change.ATTRIBUTES | Change.MOVED_AWAY | Change.MOVED_HERE | Change.CREATED | Change.DELETED


class FolderGone(Exception):
    """The watched folder was removed."""


class FolderWatch:
    """Collects what happens in a folder from its creation on, so that nothing between a look and a wait is missed.

    Raises:
        OSError: the folder is not there, or the machine's inotify instances are used up.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_IN_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), f"inotify_init1: {os.strerror(ctypes.get_errno())}")
        if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(_WANTED)) < 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, f"cannot watch {folder}: {os.strerror(number)}")

    def __enter__(self) -> FolderWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def forget(self) -> None:
        """Take what has happened until now as seen."""
        self._read()

    async def changes(self) -> dict[str, Change]:
        """Wait until something has happened since the last call; return it by name.

        An OVERFLOW has the empty name. Cancelling loses nothing. One waiter at a time.

        Raises:
            FolderGone: there is nothing to watch any more.
        """
        while not (found := self._read()):
            readable = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(self._fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._fd)
        return found

    def _read(self) -> dict[str, Change]:
        found: dict[str, Change] = {}
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return found
        at = 0
        while at < len(data):
            _, mask, _, length = _HEADER.unpack_from(data, at)
            name = os.fsdecode(data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0"))
            at += _HEADER.size + length
            if mask & Change.FOLDER_GONE:
                raise FolderGone(str(self._folder))
            if name or mask & Change.OVERFLOW:
                found[name] = found.get(name, Change(0)) | Change(mask & (_WANTED | Change.OVERFLOW))
        return found
