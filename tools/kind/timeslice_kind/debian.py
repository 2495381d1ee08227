"""Programs of Debian packages: installed where we may, else named together with the command that installs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from timeslice_kind.errors import KindError
from timeslice_kind.processes import run
from timeslice_kind.progress import say

BUILDING = {"mmdebstrap": "mmdebstrap", "podman": "podman", "nsenter": "util-linux"}
"""Programs that make the node image, and the packages that bring them."""

RUNNING = {
    "podman": "podman",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    "conmon": "conmon",
    "catatonit": "catatonit",
    "runc": "runc",
    "iptables": "iptables",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
}
"""Programs that run the nodes."""

ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def missing(programs: Mapping[str, str], path: str) -> list[str]:
    """The packages of programs that are not there; a program with a slash is looked for at that place alone."""
    return sorted({package for program, package in programs.items() if not shutil.which(program, path=path)})


def need(programs: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Install the packages of what is missing.

    Raises:
        KindError: something is missing that we may not or cannot install; says which command does it.
    """
    path = os.pathsep.join([env.get("PATH", ""), ADMIN_PATH])
    packages = missing(programs, path)
    if not packages:
        return
    line = "apt-get install --yes --no-install-recommends " + " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise KindError(f"missing on this machine: {', '.join(packages)}. On Debian, as root:\n  {line}")
    say(f"installing with apt-get: {' '.join(packages)}")
    apt = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(line.split(), env=apt)
    except KindError:
        # Old package lists name versions that the archive no longer has.
        run(["apt-get", "update"], env=apt)
        run(line.split(), env=apt)
    if still := missing(programs, path):
        raise KindError(f"apt-get installed {' '.join(packages)}, but what they should bring is not there: {still}")
