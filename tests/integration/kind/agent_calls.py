"""Calls to the agent of one node, with the orchestrator's certificate."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from forwarding import forwarded
from installation import SYSTEM
from kube import Kube
from system_pods import AGENT, system_pod

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1.snapshot_agent_pb2_grpc import SnapshotAgentServiceStub

SERVER = "snapshot-agent.timeslice-system"


def agent_log(kube: Kube, node: str) -> str:
    return kube.call("logs", "-n", SYSTEM, system_pod(kube, AGENT, node)["metadata"]["name"], "--tail=-1")


@contextlib.contextmanager
def agent(kube: Kube, node: str) -> Iterator[AgentCalls]:
    secret = kube.get("secret", "timesliceorchestrator-tls", "-n", SYSTEM)["data"]
    parts = {name: base64.b64decode(value) for name, value in secret.items()}
    credentials = grpc.ssl_channel_credentials(parts["ca.crt"], parts["tls.key"], parts["tls.crt"])
    name = system_pod(kube, AGENT, node)["metadata"]["name"]
    options = [("grpc.ssl_target_name_override", SERVER), ("grpc.use_local_subchannel_pool", 1)]
    with (
        forwarded(kube, SYSTEM, f"pod/{name}", 9001) as target,
        grpc.secure_channel(target, credentials, options) as channel,
    ):
        yield AgentCalls(SnapshotAgentServiceStub(channel))  # type: ignore[no-untyped-call]


class AgentCalls:
    def __init__(self, stub: Any) -> None:
        self.stub = stub

    def status(self) -> pb.StatusResponse:
        status: pb.StatusResponse = self.stub.Status(pb.StatusRequest(per_context=True), timeout=10)
        return status

    def until(self, seen: Callable[[pb.StatusResponse], object], timeout_s: float = 30) -> pb.StatusResponse:
        """Follow the agent until its whole state satisfies `seen`; an AssertionError shows the last."""
        deadline = time.monotonic() + timeout_s
        status = self.status()
        try:
            for _ in self.stub.Watch(pb.WatchRequest(), timeout=timeout_s):
                status = self.status()
                if seen(status):
                    return status
                if time.monotonic() > deadline:
                    break
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
        raise AssertionError(f"not within {timeout_s:g} s; last seen: {status}")


def context(status: pb.StatusResponse, job: str) -> pb.JobStatus | None:
    found = [one for one in status.job_statuses if one.job_id == job]
    return found[0] if found else None


def is_in(job: str, state: pb.JobState) -> Callable[[pb.StatusResponse], bool]:
    def seen(status: pb.StatusResponse) -> bool:
        found = context(status, job)
        return found is not None and found.state == state

    return seen
