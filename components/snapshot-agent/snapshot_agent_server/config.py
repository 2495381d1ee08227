"""All the agent can be told. Built once in main.py and handed down."""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot_agent_server.api.credentials import TlsFiles
from snapshot_agent_server.core.ids import AcceleratorId, GroupId
from snapshot_agent_server.core.samples import DeviceSample
from snapshot_agent_server.core.settings import CoreSettings

MAX_UNIX_PATH = 100
"""Bytes; the kernel allows 107."""
MIB = 1 << 20
ROLLING_UPDATE_S = 60.0
"""Longer than the agent before this one may take to end (Kubernetes' grace of 30 s, and what the kubelet needs
besides), shorter than the start-up probe's patience: beside a second agent that stays the pod fails, and says why."""


class ConfigError(Exception):
    """The flags or the environment cannot be used. The text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    node: str
    listen: tuple[str, ...]
    """Addresses, "unix:PATH" or "HOST:PORT"."""
    state_dir: Path
    tls: TlsFiles | None = None
    """Of the TCP listeners, whose callers then need a certificate too. Unix sockets stay plain."""
    orders_from: str | None = None
    """The DNS name in the certificate of the one who may give orders; None: whoever can call."""
    health: str | None = None
    """"HOST:PORT" of a plain listener with nothing but the health service, for probes."""
    insecure_listen: bool = False
    """Whether other machines may call where nobody's identity is checked."""
    kubernetes: bool = False
    """Groups and the processes of jobs are what the API server says of the node."""
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(name, accelerators by index or UUID). Empty: each accelerator is a group, gpu0, gpu1, ..."""
    allow_unfenced: bool = False
    restore_margin_mib: int | None = None
    operation_timeout_s: float = 120.0
    lock_timeout_s: float = 10.0
    rollback_timeout_s: float = 30.0
    sample_interval_s: float = 0.25
    """NVML pushes no new contexts: this often they are looked for. An intruder is to be locked within 500 ms."""
    takeover_wait_s: float = 0.0
    """Time for another agent of the node to end, before this one refuses to start."""
    close_grace_s: float = 20.0
    """Time for operations under way at SIGTERM: below Kubernetes' usual 30 s."""
    workers: int = 4
    """Driver workers that are kept warm; more are started while more calls run at once."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        for address in self.listen:
            check_address(address)
            if self.tls is None and not self.insecure_listen and leaves_machine(address):
                raise ConfigError(
                    f"--listen {address!r} can be reached from other machines, and nothing checks who calls; give"
                    " --tls-ca, --tls-cert and --tls-key, listen on 127.0.0.1 or a unix socket, or say"
                    " --insecure-listen"
                )
        if self.orders_from is not None and self.tls is None:
            raise ConfigError("--orders-from needs certificates; give --tls-ca, --tls-cert and --tls-key")
        if self.health is not None:
            check_address(self.health, "--health")
            if self.health.startswith("unix:"):
                raise ConfigError(f"--health {self.health!r} is not HOST:PORT; sockets of --listen tell health too")
        for name, value in (
            ("--operation-timeout-s", self.operation_timeout_s),
            ("--lock-timeout-s", self.lock_timeout_s),
            ("--rollback-timeout-s", self.rollback_timeout_s),
            ("--sample-interval-ms", self.sample_interval_s),
        ):
            if value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value:g}")
        for name, value in (("--close-grace-s", self.close_grace_s), ("--takeover-wait-s", self.takeover_wait_s)):
            if value < 0:
                raise ConfigError(f"{name} must not be below 0, it is {value:g}")
        if self.restore_margin_mib is not None and self.restore_margin_mib < 0:
            raise ConfigError(f"--restore-margin-mib must not be below 0, it is {self.restore_margin_mib}")
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"--workers must be from 1 to 64, not {self.workers}")
        if not self.node:
            raise ConfigError("--node must not be empty; set it, or TIMESLICE_NODE")
        if self.kubernetes and self.groups:
            raise ConfigError("--group does not go with --kubernetes: in a cluster TimeSliceGroups say the groups")

    def core_settings(self, devices: Sequence[DeviceSample]) -> CoreSettings:
        """With the groups' accelerators as they are on this node. Raises: ConfigError."""
        return CoreSettings(
            groups={} if self.kubernetes else resolve_groups(self.groups, devices),
            is_in_cluster=self.kubernetes,
            operation_timeout_s=self.operation_timeout_s,
            lock_timeout_s=self.lock_timeout_s,
            rollback_timeout_s=self.rollback_timeout_s,
            restore_margin_bytes=None if self.restore_margin_mib is None else self.restore_margin_mib * MIB,
            allow_unfenced=self.allow_unfenced,
        )


def resolve_groups(
    groups: Sequence[tuple[str, Sequence[str]]], devices: Sequence[DeviceSample]
) -> dict[GroupId, tuple[AcceleratorId, ...]]:
    """Accelerators by UUID for each group. Raises: ConfigError for one that is unknown, or in two groups."""
    if not groups:
        return {GroupId(f"gpu{device.index}"): (device.accelerator,) for device in devices}
    names = {str(device.index): device.accelerator for device in devices}
    names.update({device.accelerator: device.accelerator for device in devices})
    owner: dict[AcceleratorId, str] = {}
    resolved: dict[GroupId, tuple[AcceleratorId, ...]] = {}
    for group, wanted in groups:
        if group in resolved:
            raise ConfigError(f"--group {group} is given twice; list all its accelerators in one flag")
        for name in wanted:
            accelerator = names.get(name)
            if accelerator is None:
                known = ", ".join(f"{device.index} ({device.accelerator})" for device in devices) or "none"
                raise ConfigError(f"--group {group}: no accelerator {name!r} on this node; it has {known}")
            if accelerator in owner:
                raise ConfigError(
                    f"--group {group}: accelerator {name} ({accelerator}) is in group {owner[accelerator]!r} already;"
                    " an accelerator belongs to one group"
                )
            owner[accelerator] = group
        resolved[GroupId(group)] = tuple(names[name] for name in wanted)
    return resolved


def check_address(address: str, flag: str = "--listen") -> None:
    """Raises: ConfigError."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if len(os.fsencode(path)) >= MAX_UNIX_PATH:
            raise ConfigError(
                f"the socket path {path} has {len(os.fsencode(path))} bytes, and the system allows less than"
                f" {MAX_UNIX_PATH}; choose a shorter one with {flag} or TIMESLICE_RUNTIME_DIR"
            )
        if not path:
            raise ConfigError(f"{flag} unix: needs a path, as in unix:/run/timeslice/agent.sock")
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{flag} {address!r} is neither unix:PATH nor HOST:PORT")


def leaves_machine(address: str) -> bool:
    """True unless only processes of this machine can reach the address."""
    if address.startswith("unix:"):
        return False
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def runtime_dir(env: Mapping[str, str]) -> Path:
    """Where sockets live."""
    if env.get("TIMESLICE_RUNTIME_DIR"):
        return Path(env["TIMESLICE_RUNTIME_DIR"])
    if env.get("XDG_RUNTIME_DIR"):
        return Path(env["XDG_RUNTIME_DIR"]) / "timeslice"
    return Path(f"/tmp/timeslice-{os.getuid()}")


def state_dir(env: Mapping[str, str]) -> Path:
    if env.get("TIMESLICE_STATE_DIR"):
        return Path(env["TIMESLICE_STATE_DIR"])
    base = Path(env["XDG_STATE_HOME"]) if env.get("XDG_STATE_HOME") else Path(env.get("HOME", "/")) / ".local/state"
    return base / "timeslice"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):  # type: ignore[no-untyped-def]
        raise ConfigError(f"{message}; see --help")


def from_arguments(arguments: Sequence[str], env: Mapping[str, str]) -> AgentConfig:
    """Raises: ConfigError; SystemExit after --help."""
    parser = _Parser(
        prog="snapshot-agent",
        description="Saves and restores the device memory of jobs on this node, for the timeslice orchestrator.",
        epilog="Without a GPU: gpu-mock run -- snapshot-agent ...",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--listen",
        action="append",
        metavar="ADDR",
        help="unix:PATH or HOST:PORT, may be repeated (default: unix:RUNTIME_DIR/agent.sock)",
    )
    parser.add_argument(
        "--insecure-listen",
        action="store_true",
        help="allow --listen addresses that other machines can reach without certificates: whoever calls gives orders",
    )
    for flag, what in (
        ("--tls-ca", "who signs the certificates of callers"),
        ("--tls-cert", "this agent's certificate"),
        ("--tls-key", "its private key"),
    ):
        parser.add_argument(flag, type=Path, metavar="FILE", help=f"PEM; mutual TLS on HOST:PORT listeners: {what}")
    parser.add_argument(
        "--orders-from",
        metavar="NAME",
        help="who may save, restore, lock, kill and watch: only a caller whose certificate has this DNS name",
    )
    parser.add_argument(
        "--health", metavar="HOST:PORT", help="a listener of its own for probes: plain, nothing but the health service"
    )
    parser.add_argument("--node", help="this node's name (default: TIMESLICE_NODE, else the host name)")
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=ACC[,ACC...]",
        help="accelerators, by index or UUID, that jobs take turns on; may be repeated"
        " (default: each GPU a group, gpu0, gpu1, ...)",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        help="folder of agent.db (default: TIMESLICE_STATE_DIR, else XDG_STATE_HOME/timeslice)",
    )
    parser.add_argument(
        "--kubernetes",
        action="store_true",
        help="take groups (TimeSliceGroups) and the processes of jobs (pods with the label timeslice.io/job-id) from"
        " the API server; needs TIMESLICE_NODE, and the host's PID namespace",
    )
    parser.add_argument("--allow-unfenced", action="store_true", help="take calls without tokens also after one with")
    parser.add_argument(
        "--restore-margin-mib",
        type=int,
        metavar="MIB",
        help="memory that a restore must leave free on each GPU (default: 512, but at most a 16th of the GPU's memory)",
    )
    defaults = AgentConfig.__dataclass_fields__
    for flag, name, text in (
        ("--operation-timeout-s", "operation_timeout_s", "deadline of a snapshot or restore that states none"),
        ("--lock-timeout-s", "lock_timeout_s", "how long submitted work may take to drain"),
        ("--rollback-timeout-s", "rollback_timeout_s", "time for the way back, past the deadline"),
        ("--close-grace-s", "close_grace_s", "time for operations under way at SIGTERM"),
    ):
        default = defaults[name].default
        parser.add_argument(flag, type=float, default=default, metavar="S", help=f"{text} (default: {default:g})")
    parser.add_argument(
        "--takeover-wait-s",
        type=float,
        metavar="S",
        help="how long another agent that has the state folder may take to end, before this one gives up"
        f" (default: {ROLLING_UPDATE_S:g} with --kubernetes, else 0)",
    )
    parser.add_argument(
        "--sample-interval-ms", type=float, default=250.0, metavar="MS", help="period of NVML samples (default: 250)"
    )
    parser.add_argument("--workers", type=int, default=4, help="driver workers that are kept warm (default: 4)")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    given = parser.parse_args(arguments)
    if given.kubernetes and not (given.node or env.get("TIMESLICE_NODE")):
        raise ConfigError("--kubernetes needs the Node's name; set TIMESLICE_NODE (downward API: spec.nodeName)")
    return AgentConfig(
        node=given.node if given.node is not None else env.get("TIMESLICE_NODE") or socket.gethostname(),
        listen=tuple(given.listen or [f"unix:{runtime_dir(env) / 'agent.sock'}"]),
        state_dir=given.state_dir or state_dir(env),
        tls=_tls(given.tls_ca, given.tls_cert, given.tls_key),
        orders_from=given.orders_from,
        health=given.health,
        insecure_listen=given.insecure_listen,
        kubernetes=given.kubernetes,
        takeover_wait_s=_takeover_wait_s(given.takeover_wait_s, given.kubernetes),
        groups=tuple(_group(text) for text in given.group),
        allow_unfenced=given.allow_unfenced,
        restore_margin_mib=given.restore_margin_mib,
        operation_timeout_s=given.operation_timeout_s,
        lock_timeout_s=given.lock_timeout_s,
        rollback_timeout_s=given.rollback_timeout_s,
        close_grace_s=given.close_grace_s,
        sample_interval_s=given.sample_interval_ms / 1000,
        workers=given.workers,
        log_level=given.log_level,
    )


def _takeover_wait_s(given: float | None, is_in_cluster: bool) -> float:
    if given is None:
        return ROLLING_UPDATE_S if is_in_cluster else 0.0
    return given


def _tls(ca: Path | None, cert: Path | None, key: Path | None) -> TlsFiles | None:
    if ca is None and cert is None and key is None:
        return None
    if ca is None or cert is None or key is None:
        raise ConfigError("--tls-ca, --tls-cert and --tls-key belong together; give all three or none")
    return TlsFiles(ca, cert, key)


def _group(text: str) -> tuple[str, tuple[str, ...]]:
    name, separator, accelerators = text.partition("=")
    members = tuple(part for part in accelerators.split(",") if part)
    if not separator or not name or not members:
        raise ConfigError(f"--group {text!r} is not NAME=ACC[,ACC...], as in trainers=0,1")
    if len(name) > 253 or not name.isprintable():
        raise ConfigError(f"--group {name[:40]!r}: a name has 1 to 253 characters and no control characters")
    return name, members
