"""Addresses as flags give them: "unix:PATH" or "HOST:PORT"; and whether one can be listened on."""

import ipaddress
import os
import socket
import stat
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 99


class CannotListen(Exception):
    """The address cannot be served. The text says why and what to do."""


def address_problem(address: str) -> str | None:
    """Why gRPC could not use this address, or None."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path:
            return f"address {address!r} has no path"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            return (f"socket path {path!r} is longer than {MAX_SOCKET_PATH_BYTES} bytes, the limit for unix sockets;"
                    " choose a shorter folder")
        return None
    host, separator, port = address.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        return f"address {address!r} is neither unix:PATH nor HOST:PORT"
    return None


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


def prepare(address: str) -> None:
    """Make the folder of a unix socket, and refuse an address that somebody serves already.

    gRPC would take a live server's socket path over without a word. A socket that nobody serves is left for gRPC to
    replace.
    """
    if not address.startswith("unix:"):
        return
    path = Path(address.removeprefix("unix:"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotListen(
            f"cannot make folder {str(path.parent)!r} for the socket ({error.strerror}); choose another --listen"
        ) from error
    _refuse_strangers_folder(path.parent)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CannotListen(f"folder {str(path.parent)!r} is not writable; choose another --listen")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{str(path)!r} exists and is not a socket; choose another --listen")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass
    raise CannotListen(
        f"address {address!r} is in use by another process; stop that one or choose another --listen")


def _refuse_strangers_folder(folder: Path) -> None:
    """A folder of ours in a world-writable place, for example /tmp, may have been made by somebody else first."""
    owner = folder.stat().st_uid
    if folder.parent == Path("/tmp") and folder.name.startswith("timeslice-") and owner != os.getuid():
        raise CannotListen(
            f"folder {str(folder)!r} belongs to user {owner}; remove it or set TIMESLICE_RUNTIME_DIR")
