"""A sampler or trainer process: it does what its job's controller says, one phase at a time, and ends when that does.

Usage: python -m timeslice_demo.worker_process DESCRIPTOR, where DESCRIPTOR is an inherited socket (see worker.py).
"""

import os
import sys
from multiprocessing.connection import Connection

from timeslice_demo.child_processes import die_with_parent
from timeslice_demo.device import Device, DeviceError, OutOfDeviceMemory
from timeslice_demo.roles import ROLES, PhaseResult
from timeslice_demo.worker import OTHER, OUT_OF_MEMORY, WorkerError, WorkerSpec


def serve(channel: Connection) -> None:
    """Do one phase after the other until the controller closes the channel."""
    try:
        spec: WorkerSpec = channel.recv()
        role = ROLES[spec.pool](spec.role, spec.digits, Device)
        channel.send(PhaseResult([]))  # ready
        while True:
            method, arguments = channel.recv()
            try:
                answer: PhaseResult | WorkerError = getattr(role, method)(*arguments)
            except OutOfDeviceMemory as error:
                answer = WorkerError(OUT_OF_MEMORY, str(error))
            except DeviceError as error:
                answer = WorkerError(OTHER, str(error))
            channel.send(answer)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    die_with_parent()
    serve(Connection(int(sys.argv[1])))
    os._exit(0)  # nothing is left to be put in order: device memory goes with the process, as in a job that is done
