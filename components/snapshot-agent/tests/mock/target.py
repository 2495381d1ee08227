"""A process that uses a GPU as it is told on stdin, one command a line; one line of answer each.

alloc DEVICE BYTES   a context on that device, and memory filled with a pattern
check                "same" if all memory still has its pattern
grow BYTES           more memory on the device of the last alloc
busy MS              a kernel that runs so long, submitted and not waited for
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from cuda.bindings import driver

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 us)
{
    ret;
}
"""


def check(answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if int(result) != 0:
        raise RuntimeError(f"{result!r}")
    return values[0] if values else None


class Target:
    def __init__(self) -> None:
        check(driver.cuInit(0))
        self.memory: list[tuple[Any, bytes]] = []
        self.module: Any = None

    def alloc(self, device: str, size: str) -> str:
        context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(int(device)))))
        check(driver.cuCtxSetCurrent(context))
        return self.grow(size)

    def grow(self, size: str) -> str:
        pattern = bytes((7 * len(self.memory) + i) % 251 for i in range(4096)) * (int(size) // 4096)
        pointer = check(driver.cuMemAlloc(len(pattern)))
        check(driver.cuMemcpyHtoD(pointer, pattern, len(pattern)))
        self.memory.append((pointer, pattern))
        return "ok"

    def check(self) -> str:
        for pointer, pattern in self.memory:
            found = bytearray(len(pattern))
            check(driver.cuMemcpyDtoH(found, pointer, len(pattern)))
            if bytes(found) != pattern:
                return "different"
        return "same"

    def busy(self, ms: str) -> str:
        if self.module is None:
            self.module = check(driver.cuModuleLoadData(PTX))
        kernel = check(driver.cuModuleGetFunction(self.module, b"busy"))
        args = ((int(ms) * 1000,), (ctypes.c_uint64,))
        check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, args, 0))
        return "ok"


def main() -> None:
    target: Target | None = None
    print("here", flush=True)
    for line in sys.stdin:
        command, *args = line.split()
        try:
            target = target or Target()
            print(getattr(target, command)(*args), flush=True)
        except RuntimeError as error:
            print(f"error {error}", flush=True)


if __name__ == "__main__":
    main()
