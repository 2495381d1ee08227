"""Calls servers with stubs of the contract below number 100, and nothing of ours; run as a process of its own.

Each line of stdin is a call, [number, address, service, method, fields, timeout_s]; its answer goes out as a line of
stdout when it comes, [number, {"ok": fields}] or [number, {"code": name, "details": text}].
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from snapshot_agent.v1alpha1 import snapshot_agent_pb2, snapshot_agent_pb2_grpc
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2, orchestrator_pb2_grpc

assert not hasattr(orchestrator_pb2, "Lease"), "these are not the stubs of the old contract"
assert not hasattr(snapshot_agent_pb2, "LockRequest"), "these are not the stubs of the old contract"

SERVICES = {
    "orchestrator": (orchestrator_pb2, orchestrator_pb2_grpc.TimeSliceOrchestratorServiceStub),
    "agent": (snapshot_agent_pb2, snapshot_agent_pb2_grpc.SnapshotAgentServiceStub),
}
printing = threading.Lock()
channels: dict[str, grpc.Channel] = {}


def call(number: int, address: str, service: str, method: str, fields: dict[str, Any], timeout_s: float) -> None:
    messages, stub = SERVICES[service]
    request = ParseDict(fields, getattr(messages, f"{method}Request")(), ignore_unknown_fields=False)
    answer: dict[str, Any]
    try:
        reply = getattr(stub(channels[address]), method)(request, timeout=timeout_s)
        answer = {"ok": MessageToDict(reply, preserving_proto_field_name=True)}
    except grpc.RpcError as error:
        answer = {"code": error.code().name, "details": error.details()}
    with printing:
        print(json.dumps([number, answer]), flush=True)


def main() -> None:
    with ThreadPoolExecutor(8) as calls:
        for line in sys.stdin:
            number, address, *rest = json.loads(line)
            if address not in channels:
                channels[address] = grpc.insecure_channel(address)
            calls.submit(call, number, address, *rest)


if __name__ == "__main__":
    main()
