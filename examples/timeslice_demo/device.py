"""One accelerator through the official cuda-bindings: memory, copies, and a kernel that keeps it busy for a stated
time.

The work stream runs the kernel, the copy stream the copies; neither waits for the other, so that the host reads and
writes device memory while the kernel runs, as a framework's copies overlap its compute.
"""

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

BUSY_KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64

// busy(u64 microseconds): launch one thread.
.visible .entry busy(.param .u64 microseconds)
{
    .reg .u64 %t<5>;
    .reg .pred %p;
    ld.param.u64 %t1, [microseconds];
    mul.lo.u64 %t1, %t1, 1000;
    mov.u64 %t2, %globaltimer;
wait:
    mov.u64 %t3, %globaltimer;
    sub.u64 %t4, %t3, %t2;
    setp.lt.u64 %p, %t4, %t1;
    @%p bra wait;
    ret;
}
\0"""


class DeviceError(Exception):
    """A driver call failed; `.call` and `.result` say which and how."""

    def __init__(self, call: str, result: driver.CUresult) -> None:
        super().__init__(f"{call} failed with {result.name}")
        self.call, self.result = call, result


class OutOfDeviceMemory(DeviceError):
    """The device has no room for the allocation; `.wanted_bytes`, `.free_bytes` and `.total_bytes` are of the
    attempt.
    """

    def __init__(
        self, call: str, result: driver.CUresult, wanted_bytes: int, free_bytes: int, total_bytes: int
    ) -> None:
        super().__init__(call, result)
        self.args = (
            f"out of device memory: {wanted_bytes / 2**20:.1f} MiB wanted, {free_bytes / 2**20:.1f} of"
            f" {total_bytes / 2**20:.1f} MiB free ({result.name})",
        )
        self.wanted_bytes, self.free_bytes, self.total_bytes = wanted_bytes, free_bytes, total_bytes


class Device:
    """The accelerator with that ordinal, with its primary context current in the calling thread."""

    def __init__(self, ordinal: int) -> None:
        _call(driver.cuInit, 0)
        device = _call(driver.cuDeviceGet, ordinal)
        _call(driver.cuCtxSetCurrent, _call(driver.cuDevicePrimaryCtxRetain, device))
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self._work_stream = _call(driver.cuStreamCreate, flags)
        self._copy_stream = _call(driver.cuStreamCreate, flags)
        module = _call(driver.cuModuleLoadData, BUSY_KERNEL)
        self._busy_kernel = _call(driver.cuModuleGetFunction, module, b"busy")

    def allocate(self, size_bytes: int) -> int:
        """Take device memory; return its address.

        Raises:
            OutOfDeviceMemory: there is no room. Nothing was taken.
        """
        result, address = driver.cuMemAlloc(size_bytes)
        if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = _call(driver.cuMemGetInfo)
            raise OutOfDeviceMemory("cuMemAlloc", result, size_bytes, int(free), int(total))
        if result != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError("cuMemAlloc", result)
        return int(address)

    def write(self, address: int, content: NDArray[Any]) -> None:
        """Copy an array (contiguous) to the device; return when it is there."""
        _call(driver.cuMemcpyHtoDAsync, address, content.ctypes.data, content.nbytes, self._copy_stream)
        _call(driver.cuStreamSynchronize, self._copy_stream)

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """Copy device memory to a new array of bytes."""
        content = np.empty(size_bytes, np.uint8)
        _call(driver.cuMemcpyDtoHAsync, content.ctypes.data, address, size_bytes, self._copy_stream)
        _call(driver.cuStreamSynchronize, self._copy_stream)
        return content

    def start_busy(self, duration_s: float) -> None:
        """Keep the device busy for that long from now on; return at once."""
        arguments = ((round(duration_s * 1e6),), (ctypes.c_uint64,))
        _call(driver.cuLaunchKernel, self._busy_kernel, 1, 1, 1, 1, 1, 1, 0, self._work_stream, arguments, 0)

    def wait(self) -> None:
        """Return when the device has done all it was given."""
        _call(driver.cuStreamSynchronize, self._work_stream)


def _call(function: Any, *arguments: Any) -> Any:
    """Make a driver call and return its results without the code: None, one value, or a tuple."""
    result, *values = function(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(function.__name__, result)
    return values[0] if len(values) == 1 else tuple(values) or None
