"""A job in a process of its own, as a user writes one: python -m timeslice_benchmarks.job ORCH AGENT JOB GROUP BYTES

Reads JSON lists [METHOD, ARGUMENT...] from stdin and answers each with a line of JSON. Times are of CLOCK_MONOTONIC in
nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload


class Job:
    """Takes turns. With an agent's address it holds device memory, taken during its first turn."""

    def __init__(self, orchestrator: str, agent: str, job: str, group: str, size_bytes: int) -> None:
        self._client = TimeSliceOrchestratorClient(orchestrator, job_id=job, group_id=group)
        self._size_bytes = size_bytes
        self._random = random.Random(job)
        self._handle = register_workload(agent, job, group, pids=[os.getpid()]) if agent else None

    def start(self) -> None:
        """Take the device memory under a first lease."""
        self._client.acquire()
        if self._handle is not None:
            from cuda.bindings import driver

            _ok(driver.cuInit(0))
            _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(_ok(driver.cuDeviceGet(0))))))
            address = _ok(driver.cuMemAlloc(self._size_bytes))
            content = random.Random(0).randbytes(min(self._size_bytes, 1 << 20))
            for offset in range(0, self._size_bytes, len(content)):
                size = min(len(content), self._size_bytes - offset)
                _ok(driver.cuMemcpyHtoD(int(address) + offset, content, size))
        self._client.release()

    def take_turns(self, turns: int, hold_s: float, pause_s: float) -> list[list[int]]:
        """Turn after turn: when acquire was called and had returned, when release was called and had returned."""
        stamps = []
        for _ in range(turns):
            called = time.monotonic_ns()
            self._client.acquire()
            acquired = time.monotonic_ns()
            time.sleep(hold_s * self._random.uniform(0.7, 1.3))
            releasing = time.monotonic_ns()
            self._client.release()
            stamps.append([called, acquired, releasing, time.monotonic_ns()])
            time.sleep(pause_s * self._random.uniform(0.7, 1.3))
        return stamps

    def rounds(self, times: int) -> list[int]:
        """How long acquire and release take when nobody else wants the group, ns."""
        took = []
        for _ in range(times):
            start = time.monotonic_ns()
            self._client.acquire()
            self._client.release()
            took.append(time.monotonic_ns() - start)
        return took


def _ok(answer: tuple[Any, ...]) -> Any:
    code, *values = answer
    if int(code) != 0:
        raise RuntimeError(str(code))
    return values[0] if values else None


def main() -> None:
    orchestrator, agent, name, group, size_bytes = sys.argv[1:]
    job = Job(orchestrator, agent, name, group, int(size_bytes))
    print('"ready"', flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(job, method)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
