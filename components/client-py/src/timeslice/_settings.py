"""Where things are, from arguments or the environment: addresses, ids, the folders of sockets and of state."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 100
"""Linux takes 107 bytes; a little less leaves room for a suffix."""

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
        raise SettingsError(
            f"cannot make folder {folder} ({err.strerror}); choose another one with {setting}"
        ) from err
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
    """Where the orchestrator is: `target`, else $TIMESLICE_ORCH_ADDR, else this machine's own socket."""
    return _address(target, "TIMESLICE_ORCH_ADDR", "orchestrator.sock", env)


def agent_address(agent: str | None, env: Mapping[str, str]) -> str:
    """Where this node's agent is: `agent`, else $TIMESLICE_AGENT_ADDR, else this machine's own socket."""
    return _address(agent, "TIMESLICE_AGENT_ADDR", "agent.sock", env)


def _address(given: str | None, variable: str, name: str, env: Mapping[str, str]) -> str:
    if given:
        return check_address(given, "address")
    if value := env.get(variable):
        return check_address(value, variable)
    folder = runtime_dir(env)
    with contextlib.suppress(FileNotFoundError):  # Nobody serves there; whoever calls is told so.
        check_private(folder)
    return socket_address(folder, name)
