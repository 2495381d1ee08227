"""A command on a terminal of its own, for tests: what it writes, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

TIMEOUT_S = 60.0
_TAKE_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # So that Ctrl-C is a signal to the command.
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>()][0-9A-Za-z]?)")


class OnTerminal:
    """stdin, stdout and stderr are the terminal; Ctrl-C reaches the command as it does a foreground job."""

    def __init__(self, arguments: list[str], env: dict[str, str], columns: int = 100, rows: int = 30) -> None:
        self._master, slave = pty.openpty()
        self._resize(slave, columns, rows)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *arguments], env={**env, "TERM": "xterm-256color"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        self._written = bytearray()
        self._changed = threading.Condition()
        self._closing = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def raw(self) -> str:
        with self._changed:
            return self._written.decode(errors="replace")

    @property
    def text(self) -> str:
        """All that was written, without escapes."""
        return _ESCAPES.sub("", self.raw)

    def wait_for(self, text: str, after: int = 0) -> int:
        """Wait until the text was written after the given number of characters; how many there are now."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._changed:
            while text not in (seen := _ESCAPES.sub("", self._written.decode(errors="replace")))[after:]:
                assert time.monotonic() < deadline, f"{text!r} was not written: {seen[after:]!r}"
                self._changed.wait(deadline - time.monotonic())
            return len(seen)

    def type(self, text: str) -> None:
        """As on a keyboard: "\\x03" is Ctrl-C."""
        os.write(self._master, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        self._resize(self._master, columns, rows)

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(TIMEOUT_S)
        with self._changed:
            self._closing = True
        self._reader.join(TIMEOUT_S)
        self.after = termios.tcgetattr(self._slave)
        os.close(self._slave)
        os.close(self._master)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _resize(self, descriptor: int, columns: int, rows: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._master], [], [], 0.1)
            with self._changed:
                if ready:
                    self._written += os.read(self._master, 65536)
                    self._changed.notify_all()
                elif self._closing:
                    return
