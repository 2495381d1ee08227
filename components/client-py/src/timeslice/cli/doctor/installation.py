"""What is installed for this Python, and which distribution's files are in place."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from timeslice.cli.doctor.facts import Provider

DISTRIBUTIONS = (
    "timeslice-rl",
    "timeslice-orchestrator",
    "timeslice-snapshot-agent",
    "timeslice-gpu-mock",
    "grpcio",
    "grpcio-health-checking",
    "protobuf",
    "cuda-bindings",
    "nvidia-ml-py",
    "torch",
    "rich",
    "shtab",
)
PACKAGE = "timeslice"


def installed() -> dict[str, str]:
    """Versions of those of `DISTRIBUTIONS` that are there."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def imported_from() -> str:
    """The folder of the package that this Python imports."""
    spec = importlib.util.find_spec(PACKAGE)
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else ""


def providers(names: Iterable[str] | None = None) -> tuple[Provider, ...]:
    """The distributions that bring the package; one of them may have written over files of the other."""
    if names is None:
        names = dict.fromkeys(metadata.packages_distributions().get(PACKAGE, ()))
    return tuple(_provider(metadata.distribution(name)) for name in names)


def _provider(distribution: metadata.Distribution) -> Provider:
    ours = [file for file in distribution.files or () if file.parts[0] == PACKAGE and file.suffix == ".py"]
    replaced = tuple(str(file) for file in ours if not _is_in_place(file))
    return Provider(distribution.metadata["Name"], distribution.version, len(ours), replaced)


def _is_in_place(file: metadata.PackagePath) -> bool:
    """The file is what the distribution's RECORD says it brought."""
    try:
        content = Path(str(file.locate())).read_bytes()
    except OSError:
        return False
    if file.hash is None:
        return True
    digest = hashlib.new(file.hash.mode, content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value
