"""A process tree with real forks: a keeper, a root, and children that the root starts as it is told.

child         a child that lives
daemon        twice forked, in a session of its own, the process between gone
bare-daemon   the same, with an empty environment
exec          a child that becomes another program after a fork of its own; the latter is meant
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import uuid

from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, ProcessId
from snapshot_agent_server.core.trees import Tree, TreeClaim
from snapshot_agent_server.processes import proc
from snapshot_agent_server.processes.trees import TreeWalker, planted

KEY = ContextKey(JobId("a"), GroupId("g"))
PR_SET_CHILD_SUBREAPER = 36
SLEEP = ["/bin/sleep", "3600"]


class Family:
    """A tree, and what a walker knows of it."""

    def __init__(self, *, keeper: bool = True, cgroup: str | None = None) -> None:
        self.marker = uuid.uuid4().hex
        role = ["keeper"] if keeper else ["parent"]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *role],
            env={**os.environ, "TIMESLICE_TREE": self.marker},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.root = int(self.process.stdout.readline())
        self.started = [self.root]
        self.claim = TreeClaim(self.root, self.process.pid if keeper else None, cgroup, self.marker)
        tree = planted(self.claim, set())
        assert isinstance(tree, Tree)
        self.tree = tree
        self.known: dict[ProcessId, ContextKey] = {tree.root: KEY}
        self.walker = TreeWalker()

    def start(self, how: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(how + "\n")
        self.process.stdin.flush()
        self.started.append(int(self.process.stdout.readline()))
        return self.started[-1]

    def find(self) -> set[int]:
        found = self.walker.find({KEY: [self.tree]}, self.known.get, set())
        self.known.update({process: key for key, process in found})
        return {process.pid for _, process in found}

    def forget_dead(self) -> None:
        self.known = {process: key for process, key in self.known.items() if proc.is_same(process)}

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
        if pid == self.process.pid:
            self.process.wait()

    def close(self) -> None:
        self.find()  # whoever a test did not look for
        for pid in {*self.started, *(process.pid for process in self.known)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


def wait_for_end(pid: int) -> None:
    """Until the process has ended; reaped or not."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        is_over = select.select([fd], [], [], 10.0)[0]
        os.close(fd)
        assert is_over, f"process {pid} lives on"


# -- the processes themselves


def start(command: str) -> int:
    if command == "child":
        return subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL).pid
    if command == "exec":
        shell = subprocess.Popen(
            ["/bin/sh", "-c", "sleep 3600 >/dev/null & echo $!; exec sleep 3600 >/dev/null"], stdout=subprocess.PIPE
        )
        assert shell.stdout is not None
        return int(shell.stdout.readline())
    readable, writable = os.pipe()
    between = os.fork()
    if between == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild:
            os.write(writable, str(grandchild).encode())
            os._exit(0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execve(SLEEP[0], SLEEP, {} if command == "bare-daemon" else dict(os.environ))
    os.waitpid(between, 0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        return int(pipe.read())


def main() -> None:
    if sys.argv[1:] == ["root"]:
        print(os.getpid(), flush=True)
        for line in sys.stdin:
            print(start(line.strip()), flush=True)
        return
    if sys.argv[1:] == ["keeper"]:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    subprocess.run([sys.executable, __file__, "root"], check=False)


if __name__ == "__main__":
    main()
