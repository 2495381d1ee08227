"""Becomes a server of `timeslice up`, after joining its process group and asking to end with its parent.

    python -m timeslice.cli.child_start PARENT GROUP MODULE ARGUMENTS...

PARENT is the pid of `timeslice up`, GROUP the process group to join, 0 for a new one. A program of its own rather than
code between fork and exec, which is not safe beside threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, group, module = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # Out of the terminal's group: Ctrl-C reaches `timeslice up` alone, which stops the servers in order.
    with contextlib.suppress(PermissionError, ProcessLookupError):  # The group's other member may have ended.
        os.setpgid(0, group)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # It ended before it could be watched.
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[4:]])


if __name__ == "__main__":
    main()
