"""How the demo starts processes, and how it is sure that none of them outlives it."""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import IO

PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_CHILD_SUBREAPER = 36

# Runs a command that ends when its parent does: the wish survives execve(2).
_TIED = (
    "import ctypes, os, sys\n"
    f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of one of our modules, in the interpreter that runs now."""
    return [sys.executable, "-m", module, *arguments]


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: ours, the same import path, BLAS with one thread, and `extra`."""
    paths = [path for path in sys.path if path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **extra,
    }


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however it ends; ends at once if that has happened."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Family:
    """The processes that the demo has started, and theirs as far as they tell; `end` ends them all.

    A process is held by a pidfd, so that a signal can never reach a stranger that was given its number.
    """

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []
        self._grandchildren: list[int] = []
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # children's children come to us, not to init

    def start(self, command: list[str], environment: Mapping[str, str], stderr: IO[str]) -> subprocess.Popen[str]:
        """Start a child that ends when we do, to be talked with over its stdin and stdout.

        It has a session of its own: the terminal's Ctrl-C reaches the demo alone, which then ends the others in
        order.
        """
        child = subprocess.Popen(
            [sys.executable, "-c", _TIED, *command],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def adopt(self, pids: Iterable[int]) -> None:
        """Hold processes that our children started, too."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._grandchildren.append(os.pidfd_open(pid))

    def end(self, grace_s: float = 5.0) -> None:
        """Ask the children to end, latest first; kill what has not ended in time; return when all are gone."""
        for child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + grace_s
        for child in reversed(self._children):
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        for pidfd in self._grandchildren:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])  # readable: the process has ended
            with contextlib.suppress(ChildProcessError):  # its parent has waited for it
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            os.close(pidfd)
        self._children, self._grandchildren = [], []
