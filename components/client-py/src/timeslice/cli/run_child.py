"""Becomes the command of `timeslice run`, once that says so.

    python -I -S run_child.py SOCKET CGROUP_PROCS COMMAND ARGUMENTS...

A program of its own, with the standard library alone: small while it waits for the group, in its cgroup and known to
the agent before the command can touch a device. CGROUP_PROCS is empty where there is no cgroup.
On the socket it says "ready" (or why it is not), hears "go", and says why the command cannot be started, if so. It ends
when the other end is closed before that.
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[2]:
        try:
            with open(sys.argv[2], "w", encoding="ascii") as procs:
                procs.write(str(os.getpid()))
        except OSError as err:
            channel.send(f"cgroup {err.strerror}".encode())
            return
    channel.send(b"ready")
    if channel.recv(16) != b"go":
        return
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an exec would keep it so.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as err:
        channel.send(f"exec {err.errno} {err.strerror}".encode())


if __name__ == "__main__":
    main()
