"""Clusters: made, found, loaded, deleted; on Docker with kind's own node image, or on podman with ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from timeslice_kind.cache import Cache, cache_folder, locked, remove_tree
from timeslice_kind.config import cluster_config
from timeslice_kind.debian import RUNNING, need
from timeslice_kind.errors import KindError
from timeslice_kind.golang import build_part, default_env
from timeslice_kind.lab import Lab, write_programs
from timeslice_kind.limits import check_inotify
from timeslice_kind.modules import BY_NAME, PARTS
from timeslice_kind.node_image import NodeImage, build_node_image
from timeslice_kind.processes import run
from timeslice_kind.progress import say, step

Engine = Literal["docker", "podman"]

READY = "3m"
"""For `kind create --wait`: the control plane is ready 30 s after the call on two busy cores."""

DOCKER_ANSWERS_S = 10.0
RECORD = "cluster.json"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the recipe's files are."""

    go: Path
    node: Path
    pause: Path


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a cluster that is up, kept in its folder."""

    name: str
    engine: Engine
    owner: str
    """The process that the cluster ends with, "PID START"; empty: it stays until somebody deletes it."""


class Cluster:
    """A cluster by its name; it may or may not be up."""

    def __init__(self, labs: Path, name: str) -> None:
        self.name = name
        self.lab = Lab(labs / name)

    @property
    def record(self) -> Record | None:
        try:
            return Record(**json.loads((self.lab.folder / RECORD).read_text()))
        except FileNotFoundError:
            return None

    @property
    def kubeconfig(self) -> Path:
        return self.lab.kubeconfig

    @property
    def kubectl(self) -> str:
        """A program that talks to this cluster, wherever it is called from."""
        return str(self.lab.programs / "kubectl")

    @property
    def kind(self) -> str:
        """kind for this cluster's engine, wherever it is called from."""
        return str(self.lab.programs / "kind")

    @property
    def context(self) -> str:
        return f"kind-{self.name}"

    def existing(self) -> Record:
        """Raises KindError where the cluster is not up."""
        record = self.record
        if record is None or (record.engine == "podman" and not self.lab.is_up):
            make = f"./bazelw run //tools/kind:up -- --name {self.name}"
            raise KindError(f"no cluster {self.name!r} here. Make it: {make}")
        return record

    def env(self, base: Mapping[str, str]) -> dict[str, str]:
        """For commands that talk to the cluster."""
        if self.existing().engine == "podman":
            return self.lab.env(base)
        return {**base, "KUBECONFIG": str(self.kubeconfig)}

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` so that it reaches the cluster, to be run with `env()`."""
        return self.lab.command(argv) if self.existing().engine == "podman" else list(argv)

    def load(self, archives: Sequence[Path]) -> None:
        """Put image archives (docker-archive or OCI) into all nodes."""
        self.existing()
        for archive in archives:
            with step(f"loading {archive.name} into {self.name}"):
                run([self.kind, "load", "image-archive", str(archive.resolve()), "--name", self.name])

    def node_command(self, node: str, argv: Sequence[str], *, takes_input: bool = False) -> list[str]:
        """`argv` on a node; runs from anywhere."""
        record = self.existing()
        engine = str(self.lab.programs / "podman") if record.engine == "podman" else "docker"
        return [engine, "exec", *(["--interactive"] if takes_input else []), node, *argv]

    def export_logs(self, folder: Path) -> None:
        """kind's collection of all logs of all nodes."""
        self.existing()
        run([self.kind, "export", "logs", str(folder), "--name", self.name])


class Clusters:
    """All clusters of this user on this machine."""

    def __init__(self, sources: Sources, env: Mapping[str, str] | None = None) -> None:
        self._sources = sources
        self._env = dict(env) if env is not None else default_env()
        self.cache = Cache(cache_folder(self._env))
        self.labs = self.cache.folder / "labs"

    def get(self, name: str) -> Cluster:
        """Raises KindError for a name that kind would not take."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
            raise KindError(f"{name!r} is no name for a cluster: lower-case letters, digits and '-'")
        return Cluster(self.labs, name)

    def all(self) -> list[Cluster]:
        """Those that have a folder."""
        found = self.labs.iterdir() if self.labs.is_dir() else iter(())
        return [Cluster(self.labs, path.name) for path in sorted(found) if path.is_dir()]

    def prepare(self, engine: Engine) -> tuple[Mapping[str, Path], NodeImage | None]:
        """Build what an engine needs; returns programs for the lab, and the node image."""
        if engine == "docker":
            return {name: self._program(name) for name in ("kind", "kubectl")}, None
        need(RUNNING, self._env)
        sources = self._sources
        image = build_node_image(self.cache, sources.go, sources.node, sources.pause, self._env)
        bins = {part.name: build_part(self.cache, sources.go, part, self._env) for part in PARTS}
        return {"kind": bins["kind"] / "kind", "kubectl": bins["kubernetes"] / "kubectl"}, image

    def _program(self, name: str) -> Path:
        """kind or kubectl from PATH, else built."""
        found = shutil.which(name, path=self._env["PATH"])
        if found:
            return Path(found)
        part = BY_NAME["kind" if name == "kind" else "kubernetes"]
        return build_part(self.cache, self._sources.go, part, self._env) / name

    def up(self, name: str, workers: int, engine: Engine | None = None, owner: str = "") -> Cluster:
        """Make a cluster, or say that it is there.

        Args:
            name: kind's name for it.
            workers: nodes besides the control plane.
            engine: None: Docker where one answers, else podman.
            owner: see Record.
        Raises:
            KindError: something is missing, or kind failed; nothing of the cluster is left then.
        """
        cluster = self.get(name)
        with locked(self.labs / f"{name}.lock"):
            self.delete_ownerless()
            if cluster.record is not None and (cluster.lab.is_up or cluster.record.engine == "docker"):
                say(f"cluster {name} is up already")
                return cluster
            cluster.lab.tear_down()
            check_inotify(1 + workers)
            chosen = engine or ("docker" if docker_answers(self._env) else "podman")
            say(f"cluster {name}: {chosen}, 1 control plane and {workers} workers")
            programs, image = self.prepare(chosen)
            cluster.lab.folder.mkdir(parents=True)
            try:
                self._create(cluster, workers, programs, image, Record(name, chosen, owner))
            except BaseException:
                self._remove(cluster, chosen)
                raise
        return cluster

    def _create(
        self, cluster: Cluster, workers: int, programs: Mapping[str, Path], image: NodeImage | None, record: Record
    ) -> None:
        lab = cluster.lab
        if image is not None:
            if os.geteuid() != 0:
                raise KindError("podman runs the nodes as root here: call this as root, or start a Docker engine")
            lab.set_up(image.store, programs)
        else:
            write_programs(lab.programs, lab.kubeconfig, programs, None)
        # From here on others see the cluster, and can delete it if we are killed.
        (lab.folder / RECORD).write_text(json.dumps(asdict(record)))
        config = lab.folder / "kind.json"
        config.write_text(json.dumps(cluster_config(cluster.name, workers, image), indent=1))
        with step(f"kind create cluster {cluster.name}"):
            argv = [cluster.kind, "create", "cluster", "--config", str(config), "--wait", READY]
            run(argv, env=self._env, log=lab.folder / "create.log")

    def down(self, name: str) -> None:
        """Delete a cluster and all that it left; does nothing where there is none."""
        cluster = self.get(name)
        if not cluster.lab.folder.exists():
            say(f"no cluster {name} here")
            return
        with locked(self.labs / f"{name}.lock"):
            record = cluster.record
            with step(f"deleting cluster {name}"):
                self._remove(cluster, record.engine if record else "podman")
        (self.labs / f"{name}.lock").unlink(missing_ok=True)

    def _remove(self, cluster: Cluster, engine: Engine) -> None:
        if engine == "docker":
            run([cluster.kind, "delete", "cluster", "--name", cluster.name], env=self._env)
            remove_tree(cluster.lab.folder)
        else:
            cluster.lab.tear_down()

    def delete_ownerless(self) -> None:
        """Delete clusters whose owner has gone without deleting them: a test run that was killed."""
        for cluster in self.all():
            record = cluster.record
            if record and record.owner and not process_lives(record.owner):
                say(f"cluster {cluster.name} was left by a run that is gone")
                self._remove(cluster, record.engine)

    def prune(self) -> list[Path]:
        """Remove what was built for other versions of the recipe, unless a cluster uses it."""
        if self.all():
            raise KindError("there are clusters, which may use what was built: delete them first")
        return self.cache.remove_others(set())


def docker_answers(env: Mapping[str, str]) -> bool:
    """Is there a Docker engine that we may use?"""
    if not shutil.which("docker", path=env["PATH"]):
        return False
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True, timeout=DOCKER_ANSWERS_S, check=False, env=env,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def this_process() -> str:
    """Our own identity as an owner."""
    return f"{os.getpid()} {start_time(os.getpid())}"


def process_lives(owner: str) -> bool:
    """Does the process that `this_process()` named still run?"""
    pid, _, start = owner.partition(" ")
    try:
        return str(start_time(int(pid))) == start
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_time(pid: int) -> int:
    """Clock ticks after boot; tells a process from a later one with its number."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
