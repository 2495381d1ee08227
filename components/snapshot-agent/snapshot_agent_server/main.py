"""Starts the agent: flags, driver, state folder, gRPC server; and ends it in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc
from snapshot_agent_server import logs
from snapshot_agent_server.api.credentials import BadCredentials, Credentials, load
from snapshot_agent_server.api.orders import OrdersFromOne
from snapshot_agent_server.api.service import SnapshotAgentService
from snapshot_agent_server.cluster_link import API_PATIENCE_S, connected
from snapshot_agent_server.config import AgentConfig, ConfigError, from_arguments
from snapshot_agent_server.driver.cuda_driver import CudaDriver
from snapshot_agent_server.driver.interface import DriverMissing
from snapshot_agent_server.driver.pool import Pool
from snapshot_agent_server.grpc_wakeups import ServerLoop
from snapshot_agent_server.shell import AgentShell
from snapshot_agent_server.store import lock
from snapshot_agent_server.store.lock import StoreError
from snapshot_agent_server.store.sqlite import Store

if TYPE_CHECKING:
    from snapshot_agent_server.kubernetes.cluster import Cluster

log = logging.getLogger("snapshot_agent")

T = TypeVar("T")

SERVICE = "snapshot_agent.v1alpha1.SnapshotAgentService"
SERVER_OPTIONS = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server
)
EXPIRY_NOTICE_S = 30 * 86400.0
"""A certificate that ends within this time is worth a warning at every start."""


class ListenError(Exception):
    """An address cannot be served. The text says what to do."""


def main(arguments: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 2 after bad input, with one line on stderr."""
    try:
        _raise_descriptor_limit()
        config = from_arguments(sys.argv[1:] if arguments is None else arguments, os.environ if env is None else env)
        logs.set_up(config.log_level)
        credentials = None if config.tls is None else load(config.tls)
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            runner.run(serve(config, credentials))
    except (ConfigError, BadCredentials, StoreError, DriverMissing, ListenError) as error:
        print(f"snapshot-agent: {error}", file=sys.stderr)
        return 2
    return 0


def _raise_descriptor_limit() -> None:
    """One pidfd for each process that is watched: the usual soft limit of 1024 is soon reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(config: AgentConfig, credentials: Credentials | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    taken = await _unless_stopped(stop, lock.take_over(config.state_dir, config.takeover_wait_s), "state folder")
    if taken is None:
        return
    store = Store(config.state_dir, taken)
    logs.transition(log, logging.INFO, "snapshot agent starts", node=config.node, pid=os.getpid())
    _warn_before_expiry(credentials)
    driver = CudaDriver(Pool(config.workers))
    try:
        if await _unless_stopped(stop, _start_driver(driver), "driver start") is None:
            return
        settings = config.core_settings(driver.devices())
        shell = AgentShell(
            settings,
            driver,
            store,
            incarnation=str(uuid.uuid4()),
            sample_interval_s=config.sample_interval_s,
            own_pids=lambda: driver.own_pids,
        )
        async with connected(config, driver.devices(), shell.told) as cluster:
            await _serve(config, credentials, shell, stop, cluster)
    finally:
        await driver.close()
        store.close()


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T], name: str) -> T | None:
    """The result; None: told to stop before there was one. Raises what the work raises."""
    working = asyncio.create_task(work, name=name)
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait((working,))
    return None


async def _start_driver(driver: CudaDriver) -> bool:
    """True, always. Raises: DriverMissing."""
    try:
        await driver.start()
        return True
    except DriverMissing as error:
        what = " ".join(str(error).split())
        raise DriverMissing(
            f"no usable CUDA driver and NVML on this machine ({what}); install the NVIDIA driver, or try it on mock"
            " GPUs: gpu-mock run -- snapshot-agent ..."
        ) from error


async def _serve(
    config: AgentConfig,
    credentials: Credentials | None,
    shell: AgentShell,
    stop: asyncio.Event,
    cluster: Cluster | None,
) -> None:
    service = SnapshotAgentService(shell) if config.orders_from is None else OrdersFromOne(shell, config.orders_from)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    pb_grpc.add_SnapshotAgentServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    addresses = [_listen(server, address, credentials) for address in config.listen]
    if config.kubernetes and config.orders_from is not None:
        _open_to_pods(config.listen)
    probed = grpc.aio.server(options=SERVER_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health, probed)
    health_address = None if config.health is None else _listen(probed, config.health, None, "--health")
    running = asyncio.create_task(_run(shell, cluster), name="agent")
    starting = asyncio.create_task(_started(shell, cluster), name="agent start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait((running, starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not running.done():
            starting.result()
            _spare_the_collector()
            await server.start()
            await probed.start()
            for name in ("", SERVICE):
                await health.set(name, health_pb2.HealthCheckResponse.SERVING)
            logs.transition(
                log,
                logging.INFO,
                "snapshot agent ready",
                listen=addresses,
                health=health_address,
                node=config.node,
                groups={str(group): list(map(str, members)) for group, members in shell.groups().items()},
                pid=os.getpid(),
            )
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not running.done():
            logs.transition(log, logging.INFO, "snapshot agent stops")
            await health.enter_graceful_shutdown()
            await shell.close(config.close_grace_s)
            await asyncio.gather(server.stop(1.0), probed.stop(1.0))
    finally:
        for task in (starting, stopping):
            task.cancel()
        if not running.done():
            running.cancel()
        await asyncio.wait((running,))
        _remove_sockets(config.listen)
    if not running.cancelled():
        running.result()  # a loop of the shell failed: say so, and end


async def _run(shell: AgentShell, cluster: Cluster | None) -> None:
    """If one ends, both do."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(shell.run(), name="node")
        if cluster is not None:
            await shell.started()
            tasks.create_task(cluster.run(), name="cluster")


async def _started(shell: AgentShell, cluster: Cluster | None) -> None:
    """All is known that can be known: who asks now is told no less than later."""
    await shell.started()
    if cluster is not None:
        await cluster.first_word(API_PATIENCE_S if shell.has_record else None)
        await shell.look_into_pods()


def _spare_the_collector() -> None:
    """What is there now stays: later collections need not walk through it, and come less often than by default, which
    is after 700 new objects; an operation makes more than that, and nearly none of it in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _warn_before_expiry(credentials: Credentials | None) -> None:
    left_s = EXPIRY_NOTICE_S if credentials is None else credentials.not_after_s - time.time()
    if left_s < EXPIRY_NOTICE_S:
        days = int(left_s // 86400)
        logs.transition(log, logging.WARNING, f"the certificate of this agent ends in {days} days; renew it", days=days)


def _listen(server: grpc.aio.Server, address: str, credentials: Credentials | None, flag: str = "--listen") -> str:
    """The address, a port 0 as the one that was chosen. Raises: ListenError.

    A socket file that nobody serves any more is replaced.
    """
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ListenError(f"cannot make {path.parent} ({error.strerror}); choose another {flag}") from error
        if _is_served(path):
            raise ListenError(f"{address} is in use by another process; stop it, or choose another {flag}")
        if path.is_socket():
            path.unlink()
    try:
        if credentials is None or address.startswith("unix:"):
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials.server)
    except RuntimeError as error:
        raise ListenError(
            f"cannot listen on {address}: it is in use, or not an address of this machine; choose another {flag}"
        ) from error
    if bound == 0:
        raise ListenError(f"cannot listen on {address}; choose another {flag}")
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{bound}"


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _open_to_pods(addresses: Sequence[str]) -> None:
    """Jobs' pods run as any user. Who mounts the folder may register; orders are refused there."""
    for address in addresses:
        if address.startswith("unix:"):
            Path(address.removeprefix("unix:")).chmod(0o666)


def _remove_sockets(addresses: Sequence[str]) -> None:
    for address in addresses:
        if address.startswith("unix:"):
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)
