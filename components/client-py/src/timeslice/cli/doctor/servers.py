"""Asks orchestrator and agent whether they are there. Every question has a deadline."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import grpc

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as agent_pb2
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as agent_grpc
from timeslice._channel import open_channel, status_of
from timeslice.cli.doctor.facts import Server, Socket
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

DEADLINE_S = 3.0


def ask_orchestrator(address: str, is_chosen: bool, deadline_s: float = DEADLINE_S) -> Server:
    """Which groups it has, and whether it pushes events."""
    found = _listener(address)
    with open_channel(address, []) as channel:
        stub: Any = pb2_grpc.TimeSliceOrchestratorServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            groups = tuple(stub.ListGroups(pb2.ListGroupsRequest(), timeout=deadline_s).group_ids)
        except grpc.RpcError as err:
            return Server(address, is_chosen, found, error=_why(err, deadline_s))
        try:
            next(iter(stub.WatchGroups(pb2.WatchGroupsRequest(), timeout=deadline_s)), None)
            has_extensions = True
        except grpc.RpcError as err:
            # With no group to tell of, the stream says nothing until the deadline.
            has_extensions = status_of(err).code != "UNIMPLEMENTED"
    return Server(address, is_chosen, found, groups=groups, has_extensions=has_extensions)


def ask_agent(address: str, is_chosen: bool, deadline_s: float = DEADLINE_S) -> Server:
    """Which accelerators it has, and to which groups they belong."""
    found = _listener(address)
    with open_channel(address, []) as channel:
        stub: Any = agent_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            accelerators = stub.Status(agent_pb2.StatusRequest(), timeout=deadline_s).accelerator_statuses
        except grpc.RpcError as err:
            return Server(address, is_chosen, found, error=_why(err, deadline_s))
    groups = tuple(dict.fromkeys(group for accelerator in accelerators for group in accelerator.groups))
    return Server(
        address, is_chosen, found, groups=groups, accelerators=len(accelerators),
        has_extensions=any(accelerator.name for accelerator in accelerators),
    )  # fmt: skip


def _listener(address: str) -> Socket | None:
    """The unix socket behind an address, None if it is none."""
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:").removeprefix("//")
    if not Path(path).exists():
        return Socket(path, False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(DEADLINE_S)
        try:
            probe.connect(path)
            size = struct.calcsize("3i")
            pid, uid, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        except OSError:
            return Socket(path, True)
    return Socket(path, True, uid, pid)


def _why(error: Any, deadline_s: float) -> str:
    status = status_of(error)
    if status.code == "DEADLINE_EXCEEDED":
        return f"no answer within {deadline_s:g} s"
    return f"{status.code}: {status.details}" if status.details else str(status.code)
