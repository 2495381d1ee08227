"""The Go modules that a cluster is made of. Their versions and packages stand in go/PART/go.mod, and only there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from timeslice_kind.errors import KindError


@dataclass(frozen=True, slots=True)
class Part:
    """One folder below go/, built by itself."""

    name: str
    module: str
    """Whose version is this part's."""

    tags: str = ""
    """Build tags."""

    renamed: tuple[tuple[str, str], ...] = ()
    """(package, name of its program), where the package's last element is not it."""


PARTS = (
    Part("kind", "sigs.k8s.io/kind"),
    Part("etcd", "go.etcd.io/etcd/server/v3", renamed=(("go.etcd.io/etcd/server/v3", "etcd"),)),
    Part("containerd", "github.com/containerd/containerd/v2", tags="no_btrfs,no_zfs,no_devmapper"),
    Part("kubernetes", "k8s.io/kubernetes"),
    Part("crictl", "sigs.k8s.io/cri-tools"),
    # The one with a main.go of ours.
    Part("coredns", "github.com/coredns/coredns"),
)
BY_NAME = {part.name: part for part in PARTS}


@dataclass(frozen=True, slots=True)
class Target:
    """One program: what to build, and the name it gets."""

    program: str
    package: str


def version(go_mod: str, module: str) -> str:
    """The version that a go.mod requires of a module."""
    found = re.search(rf"^(?:require|\t)\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise KindError(f"go.mod requires no {module}")
    return found[1]


def targets(part: Part, go_mod: str) -> list[Target]:
    """What go.mod's tool lines name; without any, the folder's own main package."""
    block = re.search(r"^tool \((.*?)^\)", go_mod, re.MULTILINE | re.DOTALL)
    packages = block[1].split() if block else re.findall(r"^tool (\S+)$", go_mod, re.MULTILINE)
    if not packages:
        return [Target(part.name, ".")]
    names = dict(part.renamed)
    return [Target(names.get(package) or package.rsplit("/", 1)[-1], package) for package in packages]


def linker_flags(part: Part, version: str) -> str:
    """No symbols; and for Kubernetes the version that its programs answer with."""
    flags = "-s -w"
    if part.name == "kubernetes":
        major, minor = version.removeprefix("v").split(".")[:2]
        told = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += "".join(f" -X k8s.io/component-base/version.{name}={value}" for name, value in told.items())
    return flags


def part_version(sources: Path, part: Part) -> str:
    """The version of a part, as its go.mod says it."""
    return version((sources / part.name / "go.mod").read_text(), part.module)
