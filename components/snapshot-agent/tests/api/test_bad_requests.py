"""Row 34 of docs/design/failures.md, and what is not built yet: each refusal says which field, and changes nothing."""

from __future__ import annotations

import os
import threading
from typing import Any

import grpc
import pytest

from node_under_test import Client, FakeNode
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

A = pb.ContextRef(job_id="a", group="g")

BAD = [
    ("Snapshot", pb.SnapshotRequest(group="g"), "INVALID_ARGUMENT", "job_id: must not be empty"),
    ("Snapshot", pb.SnapshotRequest(job_id="a" * 254, group="g"), "INVALID_ARGUMENT", "job_id: has 254 characters"),
    ("Snapshot", pb.SnapshotRequest(job_id="a\n", group="g"), "INVALID_ARGUMENT", "job_id: .*control characters"),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="\0"), "INVALID_ARGUMENT", "group: "),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="x"), "NOT_FOUND", "no group 'x' on this node; it has 'g', 'h'"),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="g", operation_id="o" * 300), "INVALID_ARGUMENT", "operation_id"),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="g", timeout_ms=-1), "INVALID_ARGUMENT", "timeout_ms"),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="g", timeout_ms=1 << 62), "INVALID_ARGUMENT", "timeout_ms"),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="g", fencing_token=-1), "INVALID_ARGUMENT", "fencing_token"),
    ("Snapshot", pb.SnapshotRequest(job_id="a", group="g", leader_epoch=-1), "INVALID_ARGUMENT", "leader_epoch"),
    (
        "Snapshot",
        pb.SnapshotRequest(
            job_id="a",
            group="g",
            backend_config=pb.BackendConfig(
                cuda=pb.CudaBackendConfig(explicit_target=pb.ProcessTarget(pids=[2_000_000_000]))
            ),
        ),
        "INVALID_ARGUMENT",
        "no process 2000000000",
    ),
    (
        "Restore",
        pb.RestoreRequest(job_id="a", group="g", operation_id="x", after_operation_id="x"),
        "INVALID_ARGUMENT",
        "after_operation_id",
    ),
    ("Lock", pb.LockRequest(context=A), "INVALID_ARGUMENT", "timeout_ms: must be above 0"),
    ("Lock", pb.LockRequest(context=pb.ContextRef(), timeout_ms=1), "INVALID_ARGUMENT", r"context\.job_id"),
    ("Unlock", pb.UnlockRequest(context=pb.ContextRef(job_id="a", group="x")), "NOT_FOUND", "no group 'x'"),
    ("Kill", pb.KillRequest(context=pb.ContextRef(group="g")), "INVALID_ARGUMENT", r"context\.job_id"),
    ("Kill", pb.KillRequest(context=pb.ContextRef(job_id="a", group="x")), "NOT_FOUND", "no group 'x'"),
    ("Kill", pb.KillRequest(context=A), "NOT_FOUND", "job 'a' has no context in group 'g' on this node"),
    ("Kill", pb.KillRequest(context=pb.ContextRef(job_id="a")), "NOT_FOUND", "job 'a' has no context on this node"),
    ("Kill", pb.KillRequest(context=A, fencing_token=-1), "INVALID_ARGUMENT", "fencing_token"),
    *(
        (
            method,
            message(job_id="a", group="g", backend_config=pb.BackendConfig(app_channel=config)),
            code,
            text,
        )
        for method, message in (("Snapshot", pb.SnapshotRequest), ("Restore", pb.RestoreRequest))
        for config, code, text in (
            (pb.AppChannelConfig(), "FAILED_PRECONDITION", "context a@g has no workload that saves itself"),
            (pb.AppChannelConfig(mode=7), "INVALID_ARGUMENT", r"app_channel\.mode: 7 is no mode; known are off"),
            (pb.AppChannelConfig(tags=["a\n"]), "INVALID_ARGUMENT", r"app_channel\.tags: .*control characters"),
            (pb.AppChannelConfig(tags=map(str, range(65))), "INVALID_ARGUMENT", r"app_channel\.tags: 65 tags"),
        )
    ),
    ("GetOperation", pb.GetOperationRequest(), "INVALID_ARGUMENT", "operation_id"),
    ("GetOperation", pb.GetOperationRequest(operation_id="never"), "NOT_FOUND", "no operation 'never'"),
    *(
        (
            method,
            message(job_id="a", group="g", backend_config=pb.BackendConfig(**{field: config})),
            "UNIMPLEMENTED",
            rf"backend_config\.{field} is not built yet",
        )
        for method, message in (("Snapshot", pb.SnapshotRequest), ("Restore", pb.RestoreRequest))
        for field, config in (
            ("app_endpoint", pb.AppEndpointConfig()),
            ("direct_memory", pb.DirectMemoryBackendConfig()),
            ("memory_regions", pb.MemoryRegionsBackendConfig()),
        )
    ),
]


@pytest.mark.parametrize(("method", "request_", "code", "text"), BAD, ids=lambda v: v if isinstance(v, str) else "")
async def test_a_bad_call_is_refused_by_field(node: FakeNode, method: str, request_: Any, code: str, text: str) -> None:
    async with node.up() as client:
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await getattr(client.stub, method)(request_)
        assert caught.value.code().name == code
        assert not node.driver.calls
        assert not client.jobs


async def test_a_huge_message_is_refused_and_the_agent_goes_on(node: FakeNode) -> None:
    async with node.up() as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.Snapshot(pb.SnapshotRequest(job_id="a" * 10_000_000, group="g"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await client.stub.Status(pb.StatusRequest())


def register(**fields: Any) -> pb.WorkloadMessage:
    return pb.WorkloadMessage(register=pb.RegisterWorkload(**{"job_id": "a", "group": "g", **fields}))


BAD_REGISTRATIONS = [
    (register(pids=[1], job_id=""), "INVALID_ARGUMENT", "job_id"),
    (register(pids=[1], group=""), "INVALID_ARGUMENT", "group"),
    (register(pids=[0]), "INVALID_ARGUMENT", "pids: 0 is no process id"),
    (register(pids=[2_000_000_000]), "INVALID_ARGUMENT", "no process 2000000000"),
    (register(pids=range(1, 5000)), "INVALID_ARGUMENT", "pids: 4999 processes"),
    (register(), "INVALID_ARGUMENT", "pids: name the processes .* or say in capabilities"),
    (register(capabilities=pb.WorkloadCapabilities(supported_modes=[0])), "INVALID_ARGUMENT", "_modes: 0 is no mode"),
    (register(capabilities=pb.WorkloadCapabilities(default_mode=9)), "INVALID_ARGUMENT", "_mode: 9 is no mode"),
    (
        register(capabilities=pb.WorkloadCapabilities(supported_modes=[1], default_mode=pb.SUSPEND_MODE_DISCARD)),
        "INVALID_ARGUMENT",
        "default_mode: discard is not among",
    ),
    (register(capabilities=pb.WorkloadCapabilities(tags=[""])), "INVALID_ARGUMENT", "capabilities.tags: must not be e"),
    (
        register(capabilities=pb.WorkloadCapabilities(), instance=pb.WorkloadInstance()),
        "INVALID_ARGUMENT",
        "instance.id: must not be empty",
    ),
    (
        register(
            capabilities=pb.WorkloadCapabilities(),
            instance=pb.WorkloadInstance(id="i", results=[pb.CommandResult(command_id="c")] * 17),
        ),
        "INVALID_ARGUMENT",
        "instance.results: 17 results",
    ),
    (
        register(pids=[1], backend_config=pb.BackendConfig(app_endpoint=pb.AppEndpointConfig())),
        "UNIMPLEMENTED",
        r"backend_config\.app_endpoint",
    ),
    (pb.WorkloadMessage(result=pb.CommandResult(command_id="x")), "INVALID_ARGUMENT", "first message"),
    (pb.WorkloadMessage(), "INVALID_ARGUMENT", "first message"),
]


@pytest.mark.parametrize(("message", "code", "text"), BAD_REGISTRATIONS, ids=lambda v: v if isinstance(v, str) else "")
async def test_a_bad_registration_ends_the_channel(
    node: FakeNode, message: pb.WorkloadMessage, code: str, text: str
) -> None:
    async with node.up() as client:
        channel = client.stub.WorkloadChannel()
        await channel.write(message)
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await channel.read()
        assert caught.value.code().name == code
        assert not client.jobs


async def test_the_agent_itself_and_threads_are_no_workloads(node: FakeNode) -> None:

    async with node.up() as client:
        with pytest.raises(grpc.aio.AioRpcError, match="agent's own"):
            await client.register("a", "g", os.getpid())
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            with pytest.raises(grpc.aio.AioRpcError, match="is a thread"):
                await client.register("a", "g", thread.native_id or 0)
        finally:
            stop.set()
            thread.join()


async def test_a_stale_call_is_refused_after_a_restart_too(node: FakeNode) -> None:
    async with node.up() as client:
        await client.unlock("a", fencing_token=5, leader_epoch=3)
    async with node.up() as client:
        for fields in ({"fencing_token": 4, "leader_epoch": 3}, {"fencing_token": 5, "leader_epoch": 2}, {}):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.unlock("a", **fields)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await _unlocked(client)


async def _unlocked(client: Client) -> None:
    await client.unlock("a", fencing_token=5, leader_epoch=3)
