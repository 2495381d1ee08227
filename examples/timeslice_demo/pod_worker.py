"""A job's sampler or trainer in a pod of its own: it calls at its controller and does what that says.

Usage: python3 -m timeslice_demo.pod_worker {sampler,trainer} --controller HOST:PORT, with the job's key in $DEMO_KEY.
The pod's labels, mounted at /etc/podinfo, say which group it is in. It ends when its controller does.
"""

import argparse
import os
import signal
from types import FrameType

from timeslice import TimeSliceOrchestratorClient
from timeslice_demo.pod_meeting import Hello, call_at
from timeslice_demo.process_id import process_id
from timeslice_demo.recorded import Pool
from timeslice_demo.worker_process import serve


def main() -> None:
    parser = argparse.ArgumentParser(description="a sampler or trainer in a pod of its own")
    parser.add_argument("pool", type=Pool, choices=list(Pool))
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    options = parser.parse_args()
    group = TimeSliceOrchestratorClient().group_id
    if group is None:
        parser.error("nothing says which group this is: label the pod timeslice.io/group and mount /etc/podinfo")
    host, _, port = options.controller.rpartition(":")
    key = os.environ["DEMO_KEY"].encode()
    with call_at((host, int(port)), key, Hello(options.pool, group, process_id())) as channel:
        serve(channel)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    os._exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)  # process 1 of a container has no default for it
    main()
    os._exit(0)  # device memory goes with the process
