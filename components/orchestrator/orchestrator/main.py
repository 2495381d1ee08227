"""Command line of the orchestrator: flags in, exit status out."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrator import logs
from orchestrator.addresses import CannotListen, address_problem, leaves_machine
from orchestrator.agents.dialing import PLAIN, BadCredentials, Dialer, TlsFiles
from orchestrator.config import BadConfig, OrchestratorConfig, default_listen, default_state_dir, env_name
from orchestrator.core.types import OnUnsaveable
from orchestrator.grpc_wakeups import ServerLoop
from orchestrator.infra.interface import AgentSpec, Infra
from orchestrator.infra.static import BadAgentFlag, StaticInfra, parse_agents
from orchestrator.logs import say
from orchestrator.policies import UnsaveablePolicies
from orchestrator.serve import Served, serve
from orchestrator.store.interface import Deposed, Store, StoreRefused
from orchestrator.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from orchestrator.infra.kubernetes import KubernetesInfra
    from orchestrator.kube.api import ApiServer

EXIT_BAD_INPUT = 2
EXIT_FAILED = 1
API_AWAY_PAUSE_S = 1.0
EXPIRY_NOTICE_S = 30 * 86400.0
"""A certificate that ends within this time is worth a warning at every start."""


class BadUsage(Exception):
    """The flags cannot be meant as they stand."""


class Parser(argparse.ArgumentParser):
    """One line for a wrong flag, not a page."""

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"{message}; see --help")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command line and the environment say."""

    listen: tuple[str, ...]
    infra: str
    store: str
    agents: tuple[AgentSpec, ...]
    agent_tls: TlsFiles | None
    state_dir: Path
    log_level: str
    config: OrchestratorConfig


def parse(flags: Sequence[str], env: Mapping[str, str]) -> Arguments:
    """All that was said; BadUsage, BadAgentFlag or BadConfig if it cannot be meant."""
    given = _parser().parse_args(flags)
    listen = tuple(given.listen or [default_listen(env)])
    for address in listen:
        problem = address_problem(address)
        if problem is not None:
            raise BadUsage(f"--listen: {problem}")
        if leaves_machine(address) and not given.insecure_listen:
            raise BadUsage(
                f"--listen {address!r} can be reached from other machines, and nothing checks who calls; listen on"
                " 127.0.0.1 or a unix socket, or say --insecure-listen")
    if len(set(listen)) < len(listen):
        raise BadUsage("--listen: the same address is given twice")
    chosen = {field.name: getattr(given, field.name) for field in fields(OrchestratorConfig)}
    chosen["on_unsaveable"] = ",".join(given.on_unsaveable) if given.on_unsaveable is not None else None
    config = OrchestratorConfig.from_settings(env, chosen)
    agents = tuple(parse_agents(given.agent))
    if given.infra == "kubernetes" and agents:
        raise BadUsage("--agent names a node by hand, and --infra kubernetes takes nodes from the cluster; give one")
    served = {group.group for agent in agents for group in agent.groups}
    for group, _ in config.on_unsaveable.by_group:
        if group not in served and given.infra == "static":
            raise BadUsage(f"--on-unsaveable names group {group!r}, which no --agent serves")
    return Arguments(
        listen=listen,
        infra=given.infra,
        store=given.store,
        agents=agents,
        agent_tls=_agent_tls(given.agent_ca, given.agent_cert, given.agent_key),
        state_dir=given.state_dir or default_state_dir(env),
        log_level=given.log_level,
        config=config,
    )


def _agent_tls(ca: Path | None, cert: Path | None, key: Path | None) -> TlsFiles | None:
    if ca is None and cert is None and key is None:
        return None
    if ca is None or cert is None or key is None:
        raise BadUsage("--agent-ca, --agent-cert and --agent-key belong together; give all three or none")
    return TlsFiles(ca, cert, key)


def main(flags: Sequence[str] | None = None) -> int:
    """Run an orchestrator until SIGTERM or SIGINT; the exit status."""
    os.umask(0o077)
    try:
        arguments = parse(sys.argv[1:] if flags is None else flags, os.environ)
        logs.set_up(arguments.log_level)
        dialer = PLAIN if arguments.agent_tls is None else Dialer(arguments.agent_tls)
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            status = runner.run(_run(arguments, dialer))
    except (BadUsage, BadAgentFlag, BadConfig, BadCredentials, CannotListen, StoreRefused) as error:
        print(f"orchestrator: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except Deposed as error:
        print(f"orchestrator: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        logs.flush()
    _remove_sockets(arguments.listen)
    return status


def _remove_sockets(listen: Sequence[str]) -> None:
    """gRPC leaves them behind."""
    for address in listen:
        if address.startswith("unix:"):
            with suppress(OSError):
                Path(address.removeprefix("unix:")).unlink()


def _warn_before_expiry(dialer: Dialer) -> None:
    left_s = EXPIRY_NOTICE_S if dialer.not_after_s is None else dialer.not_after_s - time.time()
    if left_s < EXPIRY_NOTICE_S:
        days = int(left_s // 86400)
        say(f"the certificate for agents ends in {days} days; renew it", level=logging.WARNING, days=days)


async def _run(arguments: Arguments, dialer: Dialer) -> int:
    _warn_before_expiry(dialer)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def ready(served: Served) -> None:
        say("orchestrator ready", listen=served.addresses, epoch=served.epoch, groups=served.groups,
            start_ms=round((time.monotonic() - started) * 1000))

    started = time.monotonic()
    try:
        async with AsyncExitStack() as stack:
            api = await _api_server(stack) if "kubernetes" in (arguments.infra, arguments.store) else None
            cluster = await _cluster(api, stack) if api is not None and arguments.infra == "kubernetes" else None
            infra: Infra = cluster if cluster is not None else StaticInfra(arguments.agents)
            failure = await serve(
                arguments.config, infra, arguments.listen, lambda: _open_store(arguments, api, cluster), stop, ready,
                dialer)
    except (CannotListen, StoreRefused, Deposed, BadUsage):
        raise
    except Exception:
        logs.LOG.exception("orchestrator failed; start it again: what was recorded is intact")
        return EXIT_FAILED
    if failure is not None:
        say(f"orchestrator stops: {failure}", level=logging.ERROR)
        return EXIT_FAILED
    say("orchestrator stopped")
    return 0


async def _api_server(stack: AsyncExitStack) -> "ApiServer":
    """The cluster's API server. Its client takes 100 MB and a second, so it is imported only here."""
    from orchestrator.kube.api import NoCluster, connect

    try:
        return await stack.enter_async_context(connect(os.environ))
    except NoCluster as error:
        raise BadUsage(f"--infra kubernetes and --store kubernetes: {error}") from error


async def _cluster(api: "ApiServer", stack: AsyncExitStack) -> "KubernetesInfra":
    """The cluster, followed until `stack` ends."""
    from orchestrator.infra.kubernetes import KubernetesInfra

    return await stack.enter_async_context(KubernetesInfra(api, *_own_pod(os.environ)).running())


async def _open_store(arguments: Arguments, api: "ApiServer | None", cluster: "KubernetesInfra | None") -> Store:
    """The store, led by us. Waits for an API server that is away."""
    if arguments.store == "sqlite":
        return await SqliteStore.open(arguments.state_dir)
    from orchestrator.kube.api import ApiError
    from orchestrator.store.kubernetes import KubernetesStore

    assert api is not None, "who wants that store has it"
    is_said = False
    while True:
        try:
            store = await KubernetesStore.open(api, *_own_pod(os.environ))
            if cluster is not None:
                cluster.lacks_status = store.write_again
            return store
        except ApiError as error:
            if not is_said:
                say(f"the store cannot be opened yet, and is tried again: {error}", level=logging.WARNING)
            is_said = True
            await asyncio.sleep(API_AWAY_PAUSE_S)


def _own_pod(env: Mapping[str, str]) -> tuple[str, str]:
    """Namespace and name of the pod that this is."""
    return env.get("POD_NAMESPACE") or "timeslice-system", env.get("POD_NAME") or socket.gethostname()


def _parser() -> Parser:
    parser = Parser(
        prog="orchestrator", allow_abbrev=False,
        description="Lets jobs take turns on groups of accelerators. Runs until SIGTERM.",
        epilog="Every setting can also be given by an environment variable: TIMESLICE_ORCH_ and its name in capitals.")
    parser.add_argument(
        "--listen", action="append", metavar="ADDR",
        help="unix:PATH or HOST:PORT; may be given several times (default: a socket in the runtime folder)")
    parser.add_argument(
        "--insecure-listen", action="store_true",
        help="allow --listen addresses that other machines can reach; nobody's identity is checked there")
    parser.add_argument(
        "--infra", choices=["static", "kubernetes"], default="static",
        help="where nodes and groups come from: --agent, or labels of nodes in a cluster (default: static)")
    parser.add_argument(
        "--store", choices=["sqlite", "kubernetes"], default="sqlite",
        help="where leases are recorded: a file in --state-dir, or the status of TimeSliceGroups (default: sqlite)")
    parser.add_argument(
        "--agent", action="append", default=[], metavar="NODE=ADDR,group=G[:ACC+ACC...],...",
        help="a node's snapshot agent and the groups it serves; may be given several times")
    for flag, what in (
        ("--agent-ca", "who signs the certificates of agents"),
        ("--agent-cert", "this orchestrator's certificate, by whose name agents take orders"),
        ("--agent-key", "its private key"),
    ):
        parser.add_argument(
            flag, type=Path, metavar="FILE", help=f"PEM; mutual TLS with agents at HOST:PORT addresses: {what}")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR",
        help="where the store is kept (default: $TIMESLICE_STATE_DIR, else timeslice in the XDG state folder)")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info", help="default: info")
    settings = parser.add_argument_group("settings")
    for field in fields(OrchestratorConfig):
        is_policy = field.type is UnsaveablePolicies
        settings.add_argument(
            "--" + field.name.replace("_", "-"), dest=field.name, action="append" if is_policy else "store",
            metavar=f"[GROUP=]{'|'.join(OnUnsaveable)}" if is_policy else "N",
            help=f"default: {field.default or '512 MiB, at most a 16th of the device'}; ${env_name(field.name)}")
    return parser
