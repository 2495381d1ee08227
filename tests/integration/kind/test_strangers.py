"""Row 36 of docs/design/failures.md: who calls an agent over the pods' network and is not the orchestrator."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator

import pytest
from agent_calls import SERVER
from group_watch import CONTROLLER, controller
from installation import SYSTEM, Installation
from job_pod import in_namespace
from kube import Kube
from system_pods import AGENT, system_pod

NAMESPACE = "strangers"
GROUP = "trainers"

PROGRAM = """
import json, sys
import grpc
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1.snapshot_agent_pb2_grpc import SnapshotAgentServiceStub
given = json.load(sys.stdin)
def credentials(name=None):
    parts = [given[name][part].encode() for part in ("tls.key", "tls.crt")] if name else []
    return grpc.ssl_channel_credentials(given["agent"]["ca.crt"].encode(), *parts)
options = [("grpc.ssl_target_name_override", given["server"])]
channels = {
    "plain": grpc.insecure_channel(given["address"]),
    "nameless": grpc.secure_channel(given["address"], credentials(), options),
    "agent": grpc.secure_channel(given["address"], credentials("agent"), options),
    "orchestrator": grpc.secure_channel(given["address"], credentials("orchestrator"), options),
}
codes = {}
for name, channel in channels.items():
    stub = SnapshotAgentServiceStub(channel)
    order = pb.SnapshotRequest(job_id="victim", group=given["group"])
    for call, request in ((stub.Status, pb.StatusRequest()), (stub.Snapshot, order)):
        if name == "orchestrator" and request is order:
            continue
        try:
            call(request, timeout=10)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
        codes.setdefault(name, []).append(code)
print(json.dumps(codes))
"""


@pytest.fixture
def kube(timeslice: Installation) -> Iterator[Kube]:
    with in_namespace(timeslice.kube, NAMESPACE, controller(NAMESPACE)) as kube:
        kube.wait("pod", CONTROLLER, "condition=Ready", NAMESPACE)
        yield kube


def test_row_36_an_agent_answers_the_orchestrator_alone(kube: Kube, timeslice: Installation) -> None:
    address = system_pod(kube, AGENT, timeslice.nodes[GROUP])["status"]["podIP"]
    given = {
        "agent": certificate(kube, "snapshot-agent-tls"),
        "orchestrator": certificate(kube, "timesliceorchestrator-tls"),
        "address": f"{address}:9001",
        "server": SERVER,
        "group": GROUP,
    }
    command = [kube.kubectl, "--context", kube.context, "exec", "-i", CONTROLLER, "-n", NAMESPACE, "--"]
    answer = subprocess.run(
        [*command, "python3", "-c", PROGRAM],
        input=json.dumps(given), capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    codes = json.loads(answer.stdout)
    assert codes.pop("orchestrator") == ["OK"], "it can be reached from here"
    # No connection comes about; a certificate that is made for an agent does not do for a caller.
    refused = ["UNAVAILABLE", "UNAVAILABLE"]
    assert codes == {"plain": refused, "nameless": refused, "agent": refused}


def certificate(kube: Kube, secret: str) -> dict[str, str]:
    found = kube.get("secret", secret, "-n", SYSTEM)["data"]
    return {name: base64.b64decode(value).decode() for name, value in found.items()}
