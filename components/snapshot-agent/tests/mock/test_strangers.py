"""Who may call the agent over the network, and who may give it orders (row 36 of docs/design/failures.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mock_machine import AgentProcess, MockMachine
from node_under_test import Client
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc
from snapshot_agent_server.api.orders import OPEN_TO_ALL
from timeslice_deploy.certificates import CLIENT, SERVER, Signed, issue, new_authority, now

AGENT, ORCHESTRATOR, JOB = (f"{name}.timeslice-system" for name in ("snapshot-agent", "timesliceorchestrator", "job"))

CONTEXT = pb.ContextRef(job_id="j", group="g")
ORDERS: dict[str, Any] = {
    "Snapshot": pb.SnapshotRequest(job_id="j", group="g", operation_id="o1"),
    "Restore": pb.RestoreRequest(job_id="j", group="g", operation_id="o2"),
    "Lock": pb.LockRequest(context=CONTEXT, timeout_ms=1000),
    "Unlock": pb.UnlockRequest(context=CONTEXT),
    "Kill": pb.KillRequest(context=CONTEXT),
    "Watch": pb.WatchRequest(),
    "Orders": pb.Order(id=1, unlock=pb.UnlockRequest(context=CONTEXT)),
}


class Pki:
    def __init__(self, folder: Path) -> None:
        self.authority = new_authority(now())
        self._folder = folder
        own = issue(self.authority, [AGENT], [SERVER], now())
        for name, content in (("ca.crt", self.authority.certificate), ("c", own.certificate), ("k", own.key)):
            (folder / name).write_bytes(content)

    @property
    def flags(self) -> list[str]:
        names = {"--tls-ca": "ca.crt", "--tls-cert": "c", "--tls-key": "k"}
        return [part for flag, name in names.items() for part in (flag, str(self._folder / name))]

    def caller(self, address: str, own: Signed | None, server_name: str = AGENT) -> grpc.aio.Channel:
        """A channel as whoever has this certificate makes it."""
        key, certificate = (None, None) if own is None else (own.key, own.certificate)
        credentials = grpc.ssl_channel_credentials(self.authority.certificate, key, certificate)
        options = [("grpc.ssl_target_name_override", server_name), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def named(self, *names: str) -> Signed:
        return issue(self.authority, names, [CLIENT], now())


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    folder = tmp_path / "pki"
    folder.mkdir()
    return Pki(folder)


def served_at(agent: AgentProcess) -> str:
    """Its TCP address."""
    listen = agent.log[-1]["listen"]
    assert isinstance(listen, list)
    return str(listen[-1])


async def outcome(channel: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """What becomes of an order: OK for a stream as soon as it says something."""
    stub: Any = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
    call = stub.Orders(timeout=10.0) if method == "Orders" else getattr(stub, method)(ORDERS[method], timeout=10.0)
    try:
        if method == "Orders":
            await call.write(ORDERS[method])
        if method in ("Watch", "Orders"):
            assert await call.read() is not grpc.aio.EOF
            call.cancel()
            return grpc.StatusCode.OK, ""
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL and "Internal error from Core" in (error.details() or ""):
            return await outcome(channel, method)  # it was over before it was written to, and grpc had not heard why
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_callers_without_a_certificate_of_ours_do_not_get_in(machine: MockMachine, pki: Pki) -> None:
    flags = ["--listen", "127.0.0.1:0", *pki.flags, "--orders-from", ORCHESTRATOR]
    theirs = new_authority(now(), "theirs")
    async with machine.agent(*flags) as agent:
        address = served_at(agent)
        for channel in (
            grpc.aio.insecure_channel(address),
            pki.caller(address, None),
            pki.caller(address, issue(theirs, [ORCHESTRATOR], [CLIENT], now())),
            pki.caller(address, issue(pki.authority, [ORCHESTRATOR], [SERVER], now())),
        ):
            async with channel:
                for method in ("Kill", "Watch"):
                    assert (await outcome(channel, method))[0] is grpc.StatusCode.UNAVAILABLE
                stub: Any = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Status(pb.StatusRequest(), timeout=10.0)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_only_the_orchestrators_name_gives_orders(machine: MockMachine, pki: Pki) -> None:
    flags = ["--listen", "127.0.0.1:0", *pki.flags, "--orders-from", ORCHESTRATOR]
    async with machine.agent(*flags) as agent:
        address = served_at(agent)
        for names in ((JOB,), (AGENT,), (f"x.{ORCHESTRATOR}", "timesliceorchestrator")):
            async with pki.caller(address, pki.named(*names)) as channel:
                for method in ORDERS:
                    code, text = await outcome(channel, method)
                    assert code is grpc.StatusCode.PERMISSION_DENIED, (names, method, code, text)
                    assert all(part in text for part in (names[0], ORCHESTRATOR, method)), text
                stub: Any = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
                assert len((await stub.Status(pb.StatusRequest(), timeout=10.0)).accelerator_statuses) == 2
        async with pki.caller(address, pki.named("other.example", ORCHESTRATOR)) as channel:
            for method in ORDERS:
                code, text = await outcome(channel, method)
                assert code is not grpc.StatusCode.PERMISSION_DENIED, (method, text)
            assert (await outcome(channel, "Watch"))[0] is grpc.StatusCode.OK


async def test_the_orchestrators_orders_are_carried_out(machine: MockMachine, pki: Pki) -> None:
    flags = ["--listen", "127.0.0.1:0", *pki.flags, "--orders-from", ORCHESTRATOR]
    async with machine.agent(*flags) as agent, pki.caller(served_at(agent), pki.named(ORCHESTRATOR)) as channel:
        target = await machine.target()
        client = Client(channel)
        watch = asyncio.create_task(client.follow(), name="watch")
        try:
            await client.until(lambda: client.events)
            async with grpc.aio.insecure_channel(machine.address) as job:
                await Client(job).register("j", "g", target.pid)  # as a pod does, through the node's socket
            await client.until(lambda: ("j", "g") in client.jobs)
            assert (await client.lock("j")).locked_pids == [target.pid]
            assert (await client.snapshot("j", id="s")).status == pb.OPERATION_STATUS_COMPLETE
            assert (await client.restore("j", id="r")).status == pb.OPERATION_STATUS_COMPLETE
        finally:
            watch.cancel()
            await asyncio.wait((watch,))


async def test_the_nodes_socket_is_for_jobs_not_for_orders(machine: MockMachine, pki: Pki) -> None:
    async with machine.agent(*pki.flags, "--orders-from", ORCHESTRATOR):
        async with grpc.aio.insecure_channel(machine.address) as channel:
            for method in ORDERS:
                code, text = await outcome(channel, method)
                assert code is grpc.StatusCode.PERMISSION_DENIED, (method, code)
                assert "a caller without a certificate" in text
                assert "Jobs acquire and yield at the orchestrator" in text
            target = await machine.target()
            await Client(channel).register("j", "g", target.pid)
            stub: Any = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
            status = await stub.Status(pb.StatusRequest(per_context=True), timeout=10.0)
            assert [job.job_id for job in status.job_statuses] == ["j"]


def test_every_method_of_the_contract_is_an_order_or_known_to_be_none() -> None:
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["SnapshotAgentService"].methods}
    assert methods == OPEN_TO_ALL | set(ORDERS)


async def test_probes_have_a_plain_listener_with_nothing_but_health(machine: MockMachine, pki: Pki) -> None:
    async with machine.agent(*pki.flags, "--orders-from", ORCHESTRATOR, "--health", "127.0.0.1:0") as agent:
        async with grpc.aio.insecure_channel(str(agent.log[-1]["health"])) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=10.0)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            stub: Any = pb_grpc.SnapshotAgentServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Status(pb.StatusRequest(), timeout=10.0)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await agent.terminate() == 0
