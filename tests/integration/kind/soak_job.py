"""A job that takes turns on its group for ever and writes down what it did: `soak_job.py FOLDER JOB GROUP`.

It runs in a pod. The first process starts another one in place of one that was killed; what a process wrote down before
is in its file in FOLDER, whatever became of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZE = 4 << 20
BUSY_US = 4_000
PATIENCE_S = 120.0


class Diary:
    """One line for each thing that happened; a kill leaves all that was written."""

    def __init__(self, folder: str, job: str, group: str) -> None:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        process = [os.stat("/proc/self/ns/pid").st_ino, os.getpid(), int(fields[19])]
        path = Path(folder, f"{job}.{group}.{process[0]}.{process[1]}.{time.monotonic_ns()}")
        self._file = path.open("a", buffering=1)
        self.note("began", job=job, group=group, process=process)

    def note(self, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"what": what, "at_ns": time.monotonic_ns(), **more}) + "\n")


def supervise(argv: list[str]) -> None:
    diary = Diary(*argv)
    while True:
        child = subprocess.Popen([sys.executable, __file__, "turns", *argv])
        status = child.wait()
        diary.note("ended", pid=child.pid, status=status)


def take_turns(folder: str, job: str, group: str) -> None:
    # As late as this: the first process needs none of it.
    from device_process import DeviceState
    from timeslice import TimeSliceOrchestratorClient
    from timeslice.orchestrator.exceptions import OrchestratorError

    diary = Diary(folder, job, group)
    client = TimeSliceOrchestratorClient(
        job_id=job, group_id=group, on_lost=lambda lease: diary.note("lost", text=str(lease))
    )
    state: DeviceState | None = None
    written = ""
    turn = 0
    while True:
        try:
            client.acquire(timeout_sec=PATIENCE_S)
            diary.note("acquired")
            if state is None:
                state = DeviceState(0)
            elif state.digest("weights") != written:
                diary.note("corrupt", turn=turn)
            else:
                state.free("weights")
            # Other contents each time, so that an old copy of them would be seen.
            written = state.alloc("weights", SIZE, hash((job, group, turn)))
            state.busy(BUSY_US)
            diary.note("releasing")
            client.release()
            diary.note("released")
            turn += 1
        except OrchestratorError as error:
            diary.note("failed", error=f"{error.code}: {error}")


if __name__ == "__main__":
    if sys.argv[1] == "turns":
        take_turns(*sys.argv[2:])
    else:
        supervise(sys.argv[1:])
