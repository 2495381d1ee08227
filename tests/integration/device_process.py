"""A job's process, driven line by line: reads a JSON list [method, *arguments], answers with JSON.

It speaks to the driver through the official cuda-bindings and knows nothing of mocks; it may hold groups itself, so
that one kill takes a whole job.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import sys
from typing import Any

from cuda.bindings import driver

from timeslice import TimeSliceOrchestratorClient

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 microseconds) { ret; }
\0"""
"""Names the built-in kernel `busy`; see components/gpu-mock."""


def ok(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(code.name)
    return values[0] if len(values) == 1 else tuple(values)


class DeviceState:
    """One context with named buffers."""

    def __init__(self, ordinal: int) -> None:
        ok(driver.cuInit(0))
        self._device = ok(driver.cuDeviceGet(ordinal))
        self._context = ok(driver.cuDevicePrimaryCtxRetain(self._device))
        ok(driver.cuCtxSetCurrent(self._context))
        self._buffers: dict[str, tuple[Any, int]] = {}
        self._busy: Any = None

    def alloc(self, name: str, size: int, seed: int) -> str:
        """Allocate a buffer, fill it with bytes that follow from the seed; returns their SHA-256."""
        content = random.Random(seed).randbytes(size)
        pointer = ok(driver.cuMemAlloc(size))
        self._buffers[name] = (pointer, size)
        ok(driver.cuMemcpyHtoD(pointer, content, size))
        return hashlib.sha256(content).hexdigest()

    def digest(self, name: str) -> str:
        """SHA-256 of what the device holds now."""
        pointer, size = self._buffers[name]
        content = bytearray(size)
        ok(driver.cuMemcpyDtoH(content, pointer, size))
        return hashlib.sha256(content).hexdigest()

    def free(self, name: str) -> None:
        ok(driver.cuMemFree(self._buffers.pop(name)[0]))

    def busy(self, microseconds: int) -> None:
        """Occupy the device, and wait for the end of it."""
        self.launch(microseconds)
        ok(driver.cuCtxSynchronize())

    def launch(self, microseconds: int) -> None:
        if self._busy is None:
            self._busy = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), b"busy"))
        arguments = ((microseconds,), (ctypes.c_uint64,))
        ok(driver.cuLaunchKernel(self._busy, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))


class Job:
    """The client's side of a job, in the process that also has the device state."""

    def __init__(self, target: str, job: str, group: str) -> None:
        self._client = TimeSliceOrchestratorClient(target, job_id=job, group_id=group)

    def acquire(self, timeout_sec: float) -> bool:
        return self._client.acquire(timeout_sec=timeout_sec).context_restored

    def release(self) -> bool:
        return self._client.release().snapshot_deferred


def main() -> None:
    state: DeviceState | None = None
    job: Job | None = None
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            if method == "pid":
                answer = os.getpid()
            elif method == "open":
                state, answer = DeviceState(*arguments), None
            elif method == "join":
                job, answer = Job(*arguments), None
            elif method in ("acquire", "release"):
                answer = getattr(job, method)(*arguments)
            else:
                answer = getattr(state, method)(*arguments)
            reply: dict[str, Any] = {"ok": answer}
        except Exception as error:  # told to the test, which judges it
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
