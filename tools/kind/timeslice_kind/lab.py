"""A lab: network and mount namespaces in which podman runs one cluster, all of its files in one folder.

Bridges, firewall rules, forwarding and the mounts of containers are in the namespaces and end with them, so the machine
sees nothing of a cluster but its processes and cgroups. Several labs stand beside each other.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timeslice_kind.cache import locked, remove_tree
from timeslice_kind.errors import KindError
from timeslice_kind.processes import run

CGROUPS = Path("/sys/fs/cgroup")
MODULES = Path("/lib/modules")
"""kind mounts this folder of the machine into each node; machines without modules may lack it."""

END_S = 20.0
"""podman's last processes end within a second or two of the containers."""


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab; `folder` is all that it has on the disk, and it may not be there yet."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def programs(self) -> Path:
        """First on PATH inside; they find their way into the lab from outside too."""
        return self.folder / "bin"

    @property
    def is_up(self) -> bool:
        return is_mounted(self.folder / "net") and is_mounted(self.folder / "mnt")

    def env(self, base: Mapping[str, str]) -> dict[str, str]:
        """For a command that runs inside."""
        return {
            **base,
            "PATH": f"{self.programs}:{base.get('PATH') or '/usr/local/bin:/usr/bin:/bin'}:/usr/sbin:/sbin",
            "KUBECONFIG": str(self.kubeconfig),
            "KIND_EXPERIMENTAL_PROVIDER": "podman",
        }

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` in the lab's network, which the API server, nodes and NodePorts are in; `env()` goes with it."""
        return ["nsenter", f"--net={self.folder / 'net'}", "--", *argv]

    def set_up(self, image_store: Path, programs: Mapping[str, Path]) -> None:
        """Make the namespaces and podman's settings; does nothing where they are.

        Args:
            image_store: a podman store that is read only.
            programs: name: where it is, for kind and kubectl.
        """
        if self.is_up:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("net-config", "tmp", "volumes"):
            (self.folder / name).mkdir(exist_ok=True)
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for name, text in podman_settings(self.folder, image_store, max_files).items():
            (self.folder / name).write_text(text)
        write_programs(self.programs, self.kubeconfig, programs, self)
        with locked(self.folder.parent / "modules.lock"):
            if not MODULES.exists():
                MODULES.mkdir()
                made_modules(self.folder.parent).touch()
        # The file that holds a mount namespace must lie on a mount that tells nobody of what is mounted below.
        run(["mount", "--bind", str(self.folder), str(self.folder)])
        run(["mount", "--make-private", str(self.folder)])
        for name in ("net", "mnt"):
            (self.folder / name).touch()
        inside = (
            "ip link set lo up"
            # podman keeps addresses, names and locks below /run, at places that cannot be set: they are this lab's.
            " && mount -t tmpfs -o mode=755 lab /run"
        )
        run(
            [
                "unshare", f"--net={self.folder / 'net'}", f"--mount={self.folder / 'mnt'}", "--propagation=private",
                "sh", "-euc", inside,
            ]
        )  # fmt: skip

    def tear_down(self) -> None:
        """End and remove all that the lab has, whatever state it is in; a second call does nothing.

        Raises:
            KindError: something stayed; it says what.
        """
        if not self.folder.exists():
            return
        ids = self.container_ids()
        if self.is_up:
            podman = str(self.programs / "podman")
            with contextlib.suppress(KindError):  # the hard way follows
                run([podman, "rm", "--force", "--all", "--volumes", "--time", "3"], env=self.env(os.environ))
        deadline = time.monotonic() + END_S
        # Each conmon starts one more podman as it ends, so one look is not enough.
        while pids := list(self.processes(ids)):
            if time.monotonic() > deadline - END_S / 2:
                for pid in pids:
                    kill(pid)
            if time.monotonic() > deadline:
                raise KindError(f"processes of {self.folder} do not end: {pids}")
            time.sleep(0.05)
        for name in ("mnt", "net"):
            if is_mounted(self.folder / name):
                run(["umount", str(self.folder / name)])
        if is_mounted(self.folder):
            run(["umount", str(self.folder)])
        remove_cgroups(ids)
        remove_tree(self.folder)
        with locked(self.folder.parent / "modules.lock"):
            marker = made_modules(self.folder.parent)
            if marker.exists() and not any(path.is_dir() for path in self.folder.parent.iterdir()):
                MODULES.rmdir()
                marker.unlink()

    def container_ids(self) -> list[str]:
        """Of all containers that podman has or had here."""
        folder = self.folder / "store/overlay-containers"
        return [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []

    def processes(self, ids: Sequence[str]) -> Iterator[int]:
        """Processes of the machine that are this lab's: those in its mount namespace, and in its containers' cgroups.

        What somebody else started in the lab's network (a shell, a test) is not among them.
        """
        namespace = self.folder / "mnt"
        inode = namespace.stat().st_ino if is_mounted(namespace) else None
        marks = [f"libpod-{i}" for i in ids]
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may end any time
                cgroups = (process / "cgroup").read_text()
                if any(mark in cgroups for mark in marks) or (process / "ns/mnt").stat().st_ino == inode:
                    yield int(process.name)

    def traces(self, ids: Sequence[str] = ()) -> list[str]:
        """What is on the machine of a lab that should be gone; `ids` are the containers that it had."""
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        found = [f"process {pid}" for pid in self.processes(ids)]
        found += [f"mount {place}" for place in mounts if place.startswith(str(self.folder))]
        found += [f"cgroup {path}" for path in cgroups_of(ids)]
        found += [f"folder {self.folder}"] if self.folder.exists() else []
        return found


def write_programs(folder: Path, kubeconfig: Path, programs: Mapping[str, Path], lab: Lab | None) -> None:
    """Scripts for kind and kubectl, and in a lab podman, that find the cluster wherever they are called from.

    Args:
        folder: where they go.
        kubeconfig: the cluster's.
        programs: name: where it really is, for kind and kubectl.
        lab: None: the cluster is on Docker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = {name: str(path) for name, path in programs.items()} | ({} if lab is None else {"podman": "podman"})
    for name, real in named.items():
        told = {"KUBECONFIG": str(kubeconfig)}
        enter: list[str] = []
        if lab is not None:
            told |= {
                "CONTAINERS_CONF": str(lab.folder / "containers.conf"),
                "CONTAINERS_STORAGE_CONF": str(lab.folder / "storage.conf"),
                "KIND_EXPERIMENTAL_PROVIDER": "podman",
            }
            enter = ["nsenter", f"--net={lab.folder / 'net'}"]
            if name != "kubectl":
                enter.append(f"--mount={lab.folder / 'mnt'}")
            # Inside the mount namespace the folder is another one of the same name: change to it there.
            enter += ["--", "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh"]
        lines = ["#!/bin/sh"]
        lines += [f"export {variable}={shlex.quote(value)}" for variable, value in told.items()]
        # kind calls podman by its name: not this folder's, for it is inside already.
        lines += [f"here=$PWD PATH=${{PATH#{shlex.quote(str(folder))}:}}:/usr/sbin:/sbin"]
        lines += [f"""exec {shlex.join(enter)} {'"$here" ' if enter else ''}{shlex.quote(real)} "$@\""""]
        program = folder / name
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)


def is_mounted(path: Path) -> bool:
    """Is something mounted at this place, in our mount namespace?"""
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def made_modules(labs: Path) -> Path:
    return labs / "made-lib-modules"


def podman_settings(folder: Path, image_store: Path, max_files: int) -> dict[str, str]:
    """containers.conf and storage.conf: all files below `folder`, images from `image_store` too, nothing pulled."""
    return {
        "containers.conf": f"""[containers]
# Without CAP_SYS_RESOURCE nothing above the hard limits can be asked for.
default_ulimits = ["nofile={max_files}:{max_files}", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "{folder}/tmp"
volume_path = "{folder}/volumes"
pull_policy = "never"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/net-config"
""",
        "storage.conf": f"""[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
[storage.options]
additionalimagestores = ["{image_store}"]
""",
    }


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cgroups_of(ids: Sequence[str]) -> list[Path]:
    """podman's cgroups of these containers, in all hierarchies, v1 and v2."""
    parents = [*CGROUPS.glob("*/libpod_parent"), *CGROUPS.glob("libpod_parent")]
    return [path for parent in parents for i in ids for path in parent.glob(f"libpod-*{i}*")]


def remove_cgroups(ids: Sequence[str]) -> None:
    """Remove what podman and the nodes left of empty groups; one in use, by another lab say, stays."""
    for top in cgroups_of(ids):
        for folder, _, _ in os.walk(top, topdown=False):
            remove_folder(Path(folder))
    for parent in [*CGROUPS.glob("*/libpod_parent"), *CGROUPS.glob("libpod_parent")]:
        remove_folder(parent / "conmon")
        remove_folder(parent)


def remove_folder(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()
