"""The command of `timeslice run`: started in two steps, signalled as a group, waited for with its orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from timeslice.cli.errors import CommandError
from timeslice.cli.run_cgroup import Cgroup
from timeslice.cli.run_signals import Signals

PR_SET_CHILD_SUBREAPER = 36
CHILD = Path(__file__).with_name("run_child.py")
STARTED_S = 30.0
"""From the start of an interpreter to its first word; it takes milliseconds."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of shells."""


class _Phase(Enum):
    WAITING = "what waits for `go` lives"
    RUNNING = "it has become the command"
    OVER = "it has ended"


class NotPlaced(Exception):
    """The process could not enter its cgroup."""


def check_command(word: str, env: Mapping[str, str]) -> None:
    """Say at once what would only be found after the waiting.

    Raises:
        CommandError: there is no such program.
    """
    is_there = Path(word).exists() if "/" in word else shutil.which(word, path=env.get("PATH"))
    if not is_there:
        raise CommandError(f"cannot run {word}: there is no such program", NOT_FOUND)


class CommandProcess:
    """One command in a process group of its own. The descendants that lose their parents fall to this process."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], cgroup: Cgroup | None, signals: Signals
    ) -> None:
        """Start what waits for `go`.

        Raises:
            NotPlaced: it could not enter the cgroup.
            CommandError: it did not start.
        """
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._name, self._signals = words[0], signals
        self._terminal = _Terminal()
        self._phase = _Phase.WAITING
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        ours.settimeout(STARTED_S)
        with theirs:
            theirs.set_inheritable(True)
            procs = str(cgroup.procs) if cgroup is not None else ""
            arguments = [sys.executable, "-I", "-S", str(CHILD), str(theirs.fileno()), procs, *words]
            self.pid = os.posix_spawn(sys.executable, arguments, dict(env), setpgroup=0)
        word = self._hear()
        if word != "ready":
            os.waitpid(self.pid, 0)
            if word.startswith("cgroup "):
                raise NotPlaced(word.removeprefix("cgroup "))
            raise CommandError(f"{sys.executable} did not start ({word or 'it ended at once'})")

    def go(self) -> None:
        """Let it become the command, in the foreground of the terminal if this process is there.

        Raises:
            Interrupted: a signal came before.
            CommandError: the command cannot be started; with a shell's exit code for that.
        """
        self._signals.pass_to(self.pid)
        self._phase = _Phase.RUNNING
        self._terminal.give(self.pid)
        with contextlib.suppress(OSError):  # It was killed; waiting for it tells.
            self._channel.send(b"go")
        word = self._hear()
        if word.startswith("exec "):
            self._over()
            os.waitpid(self.pid, 0)
            _, number, text = word.split(" ", 2)
            code = NOT_FOUND if number == "2" else NOT_EXECUTABLE
            raise CommandError(f"cannot run {self._name}: {text}", code)

    def wait(self, said: Callable[[str], None]) -> int:
        """Wait for the command's end; returns its exit code, 128 + N after signal N.

        When it is stopped from the terminal (Ctrl-Z), so is this process, until both are continued; `said` hears it.
        """
        while True:
            pid, status = os.waitpid(-1, os.WUNTRACED)
            if pid != self.pid:
                continue  # An orphan of the command's that has ended.
            if os.WIFSTOPPED(status):
                self._terminal.stopped(self.pid, said)
                continue
            self._over()
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def give_up(self) -> None:
        """End what waits for `go`."""
        self._channel.close()
        if self._phase is _Phase.WAITING:
            self._phase = _Phase.OVER
            os.waitpid(self.pid, 0)

    def has_left_processes(self) -> bool:
        """Some of what the command started is still there."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def _over(self) -> None:
        self._phase = _Phase.OVER
        self._signals.pass_to(None)
        self._terminal.take(self.pid)

    def _hear(self) -> str:
        try:
            return self._channel.recv(4096).decode(errors="replace")
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            return f"no word from it within {STARTED_S:g} s"
        except ConnectionError:
            return ""


class _Terminal:
    """The controlling terminal, lent to the command's process group while it is this process's own."""

    def __init__(self) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)

    def give(self, group: int) -> None:
        """Make the group the foreground one, if this process's is."""
        self._hand_over(os.getpgrp(), group)

    def take(self, group: int) -> None:
        """Back into the foreground, if the group is there."""
        self._hand_over(group, os.getpgrp())

    def stopped(self, group: int, said: Callable[[str], None]) -> None:
        """The command was stopped: let the shell see that, as of any job, and go on when it continues this process."""
        if self._fd is None:
            return  # Whoever stopped it without a terminal continues it.
        self.take(group)
        said("stopped; the group is held on")
        # Not SIGSTOP: where no shell is there to continue this process, the kernel ignores this one.
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)
        self.give(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)

    def _hand_over(self, present: int, next_: int) -> None:
        if self._fd is None:
            return
        # Whoever is in the background is stopped by this signal when it changes the foreground group.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        with contextlib.suppress(OSError):  # The terminal has gone, or the group has ended.
            if os.tcgetpgrp(self._fd) == present:
                os.tcsetpgrp(self._fd, next_)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
