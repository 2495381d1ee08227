"""The command of a `timeslice run`: a root without CUDA, a child and an orphan with device memory, working in rounds.

    python tree_process.py MODE MEBIBYTES SEED ROUNDS

MODE "turns" takes the group for each round, as a training loop does; "held" does not ask. ROUNDS 0: until a line comes
on stdin. MODE "late" gives the group back after one round, and then starts another child, which asks nobody.
Says one JSON object a line: {"pids": ...}, {"turn": [BEGIN_NS, END_NS]} on CLOCK_MONOTONIC, {"intact": ...}.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timeslice import TimeSliceOrchestratorClient

DEVICE = str(Path(__file__).with_name("device_process.py"))


class Worker:
    """A device process; see device_process.py."""

    def __init__(self, *, is_orphan: bool) -> None:
        words = [sys.executable, DEVICE]
        if is_orphan:  # In a session of its own; the shell between ends at once, and its environment is empty.
            words = ["sh", "-c", 'exec 3<&0; setsid env -i $KEPT "$@" <&3 &', "sh", *words]
        self._process = subprocess.Popen(
            words, env=kept_environment(is_orphan), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["ok"]

    def end(self) -> None:
        """Let it end, and wait until its side of the pipe is closed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.wait()


def kept_environment(is_orphan: bool) -> dict[str, str]:
    """What a process needs to find its GPU on the mock; the orphan drops all the rest, the tree's marker too."""
    needed = ("LD_LIBRARY_PATH", "PYTHONPATH", "TIMESLICE_GPU_MOCK", "TIMESLICE_GPU_MOCK_DIR", "CUDA_VISIBLE_DEVICES")
    kept = " ".join(f"{name}={os.environ[name]}" for name in needed if name in os.environ)
    return {**os.environ, "KEPT": kept} if is_orphan else dict(os.environ)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    mode, size, seed, rounds = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3]), int(sys.argv[4])
    if mode == "late":
        start_late(size, seed)
        return
    client = TimeSliceOrchestratorClient() if mode == "turns" else None
    workers: list[Worker] = []
    written: list[str] = []
    is_intact = True
    for number in itertools.count(1):
        is_last = number == rounds if rounds else bool(select.select([sys.stdin], [], [], 0)[0])
        with client.on_accelerators(timeout_sec=60) if client is not None else contextlib.nullcontext(), window():
            if not workers:
                workers = [Worker(is_orphan=False), Worker(is_orphan=True)]
                say(pids=[worker.call("pid") for worker in workers])
                for worker in workers:
                    worker.call("open", 0)
                written = [worker.call("alloc", "w", size, seed + i) for i, worker in enumerate(workers)]
            for worker in workers:
                worker.call("busy", 20_000)
            is_intact = is_intact and [worker.call("digest", "w") for worker in workers] == written
            if is_last:
                for worker in workers:
                    worker.end()
        if is_last:
            break
    if client is not None:
        client.close()
    say(intact=is_intact)
    sys.exit(0 if is_intact else 1)


def start_late(size: int, seed: int) -> None:
    """The second child's first calls come while the group is another's: they end when the group is ours again."""
    with TimeSliceOrchestratorClient() as client:
        first = Worker(is_orphan=False)
        with client.on_accelerators(timeout_sec=60):
            first.call("open", 0)
            written = [first.call("alloc", "w", size, seed)]
        say(gave_back=True)
        sys.stdin.readline()
        second = Worker(is_orphan=False)
        say(pids=[first.call("pid"), second.call("pid")])
        late: list[str] = []

        def work() -> None:
            second.call("open", 0)
            late.append(second.call("alloc", "w", size, seed + 1))
            for _ in range(200):
                second.call("busy", 5_000)

        working = threading.Thread(target=work)
        working.start()
        with client.on_accelerators(timeout_sec=60):
            working.join()
            is_intact = [worker.call("digest", "w") for worker in (first, second)] == written + late
            for worker in (first, second):
                worker.end()
    say(intact=is_intact)
    sys.exit(0 if is_intact else 1)


@contextlib.contextmanager
def window() -> Iterator[None]:
    begin = time.monotonic_ns()
    yield
    say(turn=[begin, time.monotonic_ns()])


if __name__ == "__main__":
    main()
