"""A sampler or trainer process: it does what its job's controller says, one phase at a time, and ends when that does.

Usage: python -m timeslice_demo.worker_process DESCRIPTOR, where DESCRIPTOR is an inherited socket (see worker.py).
"""

import os
import sys
from functools import partial
from multiprocessing.connection import Connection

from timeslice_demo.child_processes import die_with_parent
from timeslice_demo.device import Device, DeviceError, OutOfDeviceMemory
from timeslice_demo.digits import read_digits
from timeslice_demo.roles import ROLES, PhaseResult
from timeslice_demo.worker import OTHER, OUT_OF_MEMORY, WorkerError, WorkerSpec


def _serve(channel: Connection) -> None:
    spec: WorkerSpec = channel.recv()
    open_device = partial(Device, kernels=spec.kernels.read_text(encoding="utf-8"))
    role = ROLES[spec.pool](spec.role, read_digits(spec.digits), open_device)
    channel.send(PhaseResult([]))  # ready
    while True:
        try:
            method, arguments = channel.recv()
        except EOFError:
            return
        try:
            answer: PhaseResult | WorkerError = getattr(role, method)(*arguments)
        except OutOfDeviceMemory as error:
            answer = WorkerError(OUT_OF_MEMORY, str(error))
        except DeviceError as error:
            answer = WorkerError(OTHER, str(error))
        try:
            channel.send(answer)
        except BrokenPipeError:
            return


if __name__ == "__main__":
    die_with_parent()
    _serve(Connection(int(sys.argv[1])))
    os._exit(0)  # nothing is left to be put in order: device memory goes with the process, as in a job that is done
