"""A machine with mock GPUs and its own `timeslice up`, for tests of commands that need both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from live import Running, mock_environment, processes_of

TIMEOUT_S = 60.0

# Holds the group `pool` with 20 MiB on GPU 0 until a line comes, then takes its next turn; "end" ends it.
JOB = """
import os, sys
from cuda.bindings import driver
from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload

def checked(result):
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if values else None

job = sys.argv[1]
handle = register_workload(None, job, "pool", pids=[os.getpid()])
client = TimeSliceOrchestratorClient(job_id=job, group_id="pool")
address = None
for line in sys.stdin:
    if line.strip() == "end":
        break
    with client.on_accelerators(timeout_sec=50):
        if address is None:
            checked(driver.cuInit(0))
            checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(0))))))
            address = checked(driver.cuMemAlloc(20 << 20))
        print(job, "holds", flush=True)
        sys.stdin.readline()
    print(job, "gave back", flush=True)
client.close()
handle.close()
"""


class MockMachine:
    """Used with `with`: at its end all commands are stopped, and none may be left."""

    def __init__(self, folder: Path, gpus: str = "2x32MiB") -> None:
        self.env = mock_environment(folder, gpus)
        self.address = f"unix:{folder}/run/orchestrator.sock"
        self._running: list[Running] = []

    def __enter__(self) -> MockMachine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for command in reversed(self._running):
            if command.process.poll() is None:
                command.process.terminate()
            command.end()
        left = processes_of(self.env)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == [], "processes were left behind"

    def start(self, *arguments: str, **env: str) -> Running:
        """Python with these arguments, in the background; `env` is added to the machine's environment."""
        self._running.append(Running(list(arguments), {**self.env, **env}))
        return self._running[-1]

    def up(self, *arguments: str) -> Running:
        command = self.start("-m", "timeslice.cli", "up", *arguments)
        command.wait_for("Ctrl-C stops it")
        return command

    def job(self, name: str) -> Running:
        return self.start("-c", JOB, name)

    def timeslice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "timeslice.cli", *arguments],
            env=self.env, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
