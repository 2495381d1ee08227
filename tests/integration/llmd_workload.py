"""A workload with stubs of the contract below number 100, and nothing of ours; run as a process of its own.

Registers with the agent at argv[1] as job argv[2] in group argv[3], says that and each command as a line of stdout, and
answers it when a line of stdin comes: empty for done, else why not.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterator

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc

assert not hasattr(pb, "WorkloadInstance"), "these are not the stubs of the old contract"


def messages(job: str, group: str, results: queue.SimpleQueue[pb.CommandResult]) -> Iterator[pb.WorkloadMessage]:
    capabilities = pb.WorkloadCapabilities(
        supported_modes=[pb.SUSPEND_MODE_OFFLOAD], default_mode=pb.SUSPEND_MODE_OFFLOAD, tags=["weights"]
    )
    yield pb.WorkloadMessage(register=pb.RegisterWorkload(job_id=job, group=group, capabilities=capabilities))
    while True:
        yield pb.WorkloadMessage(result=results.get())


def main() -> None:
    address, job, group = sys.argv[1:]
    results: queue.SimpleQueue[pb.CommandResult] = queue.SimpleQueue()
    with grpc.insecure_channel(address) as channel:
        call = pb_grpc.SnapshotAgentServiceStub(channel).WorkloadChannel(messages(job, group, results))
        call.initial_metadata()
        print(json.dumps("registered"), flush=True)
        for command in call:
            print(json.dumps(command.WhichOneof("command")), flush=True)
            error = sys.stdin.readline()
            if not error:
                return
            results.put(pb.CommandResult(command_id=command.command_id, ok=error == "\n", error=error.strip()))


if __name__ == "__main__":
    main()
