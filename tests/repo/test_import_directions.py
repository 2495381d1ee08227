"""Imports point one way (docs/design/architecture.md, "Folders"): each line that does not is named."""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path.cwd()
PROTOS = {"timeslice_orchestrator", "snapshot_agent"}
FIRST_PARTY = PROTOS | {
    "timeslice", "orchestrator", "snapshot_agent_server", "gpu_mock_kubernetes", "kubelet_api", "timeslice_demo",
    "timeslice_benchmarks",
}  # fmt: skip
FORBIDDEN_IN_CORE = {"asyncio", "time", "random", "threading", "socket", "subprocess", "datetime", "secrets", "uuid"}


@dataclass(frozen=True)
class Package:
    """What one package may import of ours, and which folders inside it are edges that must not know each other."""

    folder: str
    may_import: frozenset[str]
    edges: tuple[str, ...] = ()
    lower: tuple[tuple[str, str], ...] = ()
    """(edge, another edge that it stands on)"""
    core: str | None = None
    third_party: frozenset[str] | None = None
    """Third-party modules that it may need; None: any."""

    @property
    def name(self) -> str:
        return pathlib.PurePath(self.folder).name


PACKAGES = [
    Package(
        "components/client-py/src/timeslice",
        frozenset(PROTOS),
        third_party=frozenset({"grpc", "grpc_health", "google", "rich", "shtab"}),
    ),
    Package("components/orchestrator/orchestrator", frozenset(PROTOS), ("api", "store", "infra", "agents"), (), "core"),
    Package(
        "components/snapshot-agent/snapshot_agent_server",
        frozenset(PROTOS),
        ("api", "backends", "processes", "driver", "store", "kubernetes"),
        # A backend is made of the driver's calls and of what /proc says of the targets; a driver's worker looks there
        # between two calls.
        (("backends", "driver"), ("backends", "processes"), ("driver", "processes")),
        "core",
    ),
    Package("components/gpu-mock/kubernetes/gpu_mock_kubernetes", frozenset({"kubelet_api"})),
    Package("examples/timeslice_demo", frozenset(PROTOS | {"timeslice", "orchestrator"})),
    Package("benchmarks/timeslice_benchmarks", frozenset(PROTOS | {"timeslice", "orchestrator", "timeslice_demo"})),
]


def sources(package: Package) -> list[pathlib.Path]:
    found = sorted((ROOT / package.folder).rglob("*.py"))
    assert found, f"no sources under {package.folder}: this test would pass without looking"
    return found


def imports(path: pathlib.Path, package: Package) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of each import, those inside functions too."""
    inside = path.relative_to(ROOT / package.folder).parent.parts
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            here = (package.name, *inside)
            base = here[: len(here) - node.level + 1]
            yield from (
                (node.lineno, ".".join([*base, *filter(None, [node.module]), alias.name])) for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def wrong(package: Package, path: pathlib.Path) -> Iterator[str]:
    inside = path.relative_to(ROOT / package.folder).parts
    edge = inside[0] if len(inside) > 1 else None
    for line, module in imports(path, package):
        top, *rest = module.split(".")
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if top in FIRST_PARTY and top != package.name and top not in package.may_import:
            yield f"{where}: {package.name} may import of ours only {sorted(package.may_import)}"
        if package.third_party is not None and top not in FIRST_PARTY | package.third_party | sys.stdlib_module_names:
            yield f"{where}: {package.name} needs {sorted(package.third_party)} only"
        if edge == package.core and package.core:
            if top in FORBIDDEN_IN_CORE or (top not in sys.stdlib_module_names and top != package.name):
                yield f"{where}: core knows the standard library only, and neither clocks nor tasks"
            if top == package.name and rest[:1] != [package.core]:
                yield f"{where}: core knows nobody"
        if edge in package.edges and top == package.name and rest and rest[0] in package.edges:
            if rest[0] == edge or (edge, rest[0]) in package.lower:
                continue
            yield f"{where}: one edge does not know another"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_imports_point_one_way(package: Package) -> None:
    found = [problem for path in sources(package) for problem in wrong(package, path)]
    assert not found, "\n" + "\n".join(found)


def test_a_wrong_import_is_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    bad = tmp_path / "components/orchestrator/orchestrator/core/group.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("import time\nfrom orchestrator.store import sqlite\nfrom ..api import server\nimport timeslice\n")
    package = PACKAGES[1]
    assert [p.split(" ")[0] for p in wrong(package, bad)] == [
        f"components/orchestrator/orchestrator/core/group.py:{n}" for n in (1, 2, 3, 4, 4)
    ]
