"""Where things are and who we are, from arguments, the environment, or the pod: addresses, ids, folders."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 100
"""Linux takes 107 bytes; a little less leaves room for a suffix."""

CLUSTER_ORCHESTRATOR = "timesliceorchestrator.timeslice-system:50051"
"""The orchestrator's service, as pods of any namespace reach it."""
CLUSTER_AGENT = "unix:/run/timeslice/agent.sock"
"""The node's agent, for pods that mount the node's folder /run/timeslice at the same place."""
POD_LABELS = Path("/etc/podinfo/labels")
"""The pod's labels, where its spec puts them by the downward API (fieldPath metadata.labels)."""
JOB_LABEL = "timeslice.io/job-id"
GROUP_LABEL = "timeslice.io/group"

_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:", "vsock:")


class SettingsError(ValueError):
    """A setting that cannot be; the text says which and what to do."""


def runtime_dir(env: Mapping[str, str]) -> Path:
    """The folder of sockets: $TIMESLICE_RUNTIME_DIR, else $XDG_RUNTIME_DIR/timeslice, else /tmp/timeslice-UID."""
    if chosen := env.get("TIMESLICE_RUNTIME_DIR"):
        return Path(chosen)
    if xdg := env.get("XDG_RUNTIME_DIR"):
        return Path(xdg) / "timeslice"
    return Path(f"/tmp/timeslice-{os.getuid()}")


def state_dir(env: Mapping[str, str]) -> Path:
    """The folder of what must survive: $TIMESLICE_STATE_DIR, else $XDG_STATE_HOME/timeslice, else ~/.local/state/..."""
    if chosen := env.get("TIMESLICE_STATE_DIR"):
        return Path(chosen)
    if xdg := env.get("XDG_STATE_HOME"):
        return Path(xdg) / "timeslice"
    return Path(env.get("HOME") or Path.home()) / ".local" / "state" / "timeslice"


def socket_address(folder: Path, name: str) -> str:
    """The address of a socket in the folder.

    Raises:
        SettingsError: the path is longer than a socket's path may be.
    """
    path = folder / name
    length = len(os.fsencode(path))
    if length >= MAX_SOCKET_PATH_BYTES:
        raise SettingsError(
            f"socket path {path} has {length} bytes, more than {MAX_SOCKET_PATH_BYTES - 1};"
            " set TIMESLICE_RUNTIME_DIR to a shorter folder"
        )
    return f"unix:{path}"


def check_private(folder: Path, setting: str = "TIMESLICE_RUNTIME_DIR") -> None:
    """Refuse a folder that somebody else could change; `setting` is what chooses another one.

    Raises:
        SettingsError: it belongs to another user, others may write to it, or it is no folder.
        FileNotFoundError: there is none.
    """
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise SettingsError(f"{folder} is not a folder; remove it, or choose another one with {setting}")
    if info.st_uid != os.getuid():
        raise SettingsError(
            f"{folder} belongs to user {info.st_uid}, not to you ({os.getuid()}), and is not trusted;"
            f" choose a folder of your own with {setting}"
        )
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"others may write to {folder}, so it is not trusted; run: chmod 700 {folder}")


def make_private(folder: Path, setting: str = "TIMESLICE_RUNTIME_DIR") -> None:
    """Make the folder, for this user alone, or check the one that is there.

    Raises:
        SettingsError: it cannot be made, or is not trusted (see `check_private`).
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as err:
        raise SettingsError(f"cannot make folder {folder} ({err.strerror}); choose another one with {setting}") from err
    check_private(folder, setting)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"cannot write to {folder}; run: chmod 700 {folder}, or choose another one with {setting}")


def check_address(address: str, what: str) -> str:
    """The address, if it is one.

    Raises:
        SettingsError: it is neither unix:PATH nor HOST:PORT.
    """
    if address.startswith("unix:"):
        length = len(os.fsencode(address.removeprefix("unix:").removeprefix("//")))
        if not 0 < length < MAX_SOCKET_PATH_BYTES:
            raise SettingsError(
                f"{what} {address!r} has a socket path of {length} bytes, not 1 to {MAX_SOCKET_PATH_BYTES - 1};"
                " use a shorter path"
            )
        return address
    if address.startswith(_SCHEMES):
        return address
    host, colon, port = address.rpartition(":")
    if not (colon and host and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536) or "/" in host:
        raise SettingsError(f"{what} {address!r} is neither unix:PATH nor HOST:PORT; for example localhost:50051")
    return address


def orchestrator_address(target: str | None, env: Mapping[str, str]) -> str:
    """Where the orchestrator is: `target`, else $TIMESLICE_ORCH_ADDR, else this machine's own socket.

    In a pod without such a socket the cluster's orchestrator.
    """
    return _address(target, "TIMESLICE_ORCH_ADDR", "orchestrator.sock", CLUSTER_ORCHESTRATOR, env)


def agent_address(agent: str | None, env: Mapping[str, str]) -> str:
    """Where this node's agent is: `agent`, else $TIMESLICE_AGENT_ADDR, else this machine's own socket.

    In a pod without such a socket that of the node's agent.
    """
    return _address(agent, "TIMESLICE_AGENT_ADDR", "agent.sock", CLUSTER_AGENT, env)


def in_pod(env: Mapping[str, str]) -> bool:
    """Kubernetes tells every container where its API server is."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def job_id(given: str | None, env: Mapping[str, str], labels: Path | None = None) -> str | None:
    """The job: `given`, else $TIMESLICE_JOB_ID, else the pod's label; None: nothing says.

    `labels`: the downward API's file, POD_LABELS if None.
    """
    return given or env.get("TIMESLICE_JOB_ID") or pod_labels(labels or POD_LABELS).get(JOB_LABEL)


def group_id(given: str | None, env: Mapping[str, str], labels: Path | None = None) -> str | None:
    """The group: `given`, else $TIMESLICE_GROUP_ID, else the pod's label; None: nothing says."""
    return given or env.get("TIMESLICE_GROUP_ID") or pod_labels(labels or POD_LABELS).get(GROUP_LABEL)


def pod_labels(path: Path) -> dict[str, str]:
    """The labels in a file of the downward API: a line for each, NAME="VALUE". Empty if there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs if value.strip('"')}


def _address(given: str | None, variable: str, name: str, in_cluster: str, env: Mapping[str, str]) -> str:
    if given:
        return check_address(given, "address")
    if value := env.get(variable):
        return check_address(value, variable)
    folder = runtime_dir(env)
    if in_pod(env) and not (folder / name).exists():
        return in_cluster
    with contextlib.suppress(FileNotFoundError):  # Nobody serves there; whoever calls is told so.
        check_private(folder)
    return socket_address(folder, name)
