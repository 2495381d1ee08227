"""Python, distributions and their versions."""

from __future__ import annotations

from collections.abc import Iterator

from timeslice.cli.doctor.facts import Facts, Provider
from timeslice.cli.doctor.findings import Finding, Grade

AREA = "installation"
OURS = "timeslice-rl"
CLIENT_PYTHON, SERVER_PYTHON = (3, 10), (3, 11)
FLOORS = {"grpcio": "1.81.0", "grpcio-health-checking": "1.81.0", "protobuf": "6.33.5"}
"""As in pyproject.toml; the generated code refuses to be imported below them."""
SERVERS = ("timeslice-orchestrator", "timeslice-snapshot-agent")
DRIVER_PACKAGES = ("cuda-bindings", "nvidia-ml-py")
"""What the agent calls the driver with."""


def findings(facts: Facts) -> Iterator[Finding]:
    yield _python(facts)
    yield _package(facts)
    for name, floor in FLOORS.items():
        yield _requirement(name, facts.versions.get(name), floor)
    if facts.import_problem is not None:
        yield Finding(
            AREA,
            "generated code",
            Grade.FAIL,
            f"cannot be imported: {facts.import_problem}",
            "pip install --upgrade " + " ".join(f"'{name}>={floor}'" for name, floor in FLOORS.items()),
        )
    yield _servers(facts)
    if facts.has_server_packages:
        yield from _driver_packages(facts)


def _python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < CLIENT_PYTHON:
        return Finding(AREA, "Python", Grade.FAIL, f"Python {version}", "use Python 3.10 or newer")
    if facts.python[:2] < SERVER_PYTHON:
        return Finding(AREA, "Python", Grade.OK, f"Python {version}: for clients; timeslice up needs 3.11 or newer")
    return Finding(AREA, "Python", Grade.OK, f"Python {version}")


def _package(facts: Facts) -> Finding:
    """Two distributions with a package of the same name write over each other's files."""
    check = "package timeslice"
    where = f"imported from {facts.imported_from}"
    others = [p for p in facts.providers if p.distribution != OURS]
    ours = next((p for p in facts.providers if p.distribution == OURS), None)
    if others:
        told = "; ".join(_in_place(p) for p in facts.providers)
        names = " ".join(p.distribution for p in facts.providers)
        return Finding(
            AREA,
            check,
            Grade.FAIL,
            f"two distributions bring it, and write over each other's files: {told}; {where}",
            f"pip uninstall {names}, then pip install {OURS}: it has the calls of the other one, too",
        )
    if ours is None:
        return Finding(AREA, check, Grade.OK, f"from source, {where}")
    if ours.replaced:
        return Finding(
            AREA,
            check,
            Grade.FAIL,
            f"{_in_place(ours)}; {where}",
            f"pip install --force-reinstall --no-deps {OURS}=={ours.version}",
        )
    return Finding(AREA, check, Grade.OK, f"{OURS} {ours.version}, {where}")


def _in_place(provider: Provider) -> str:
    kept = provider.files - len(provider.replaced)
    example = f", not {provider.replaced[0]}" if provider.replaced else ""
    return f"of {provider.distribution} {provider.version} {kept} of {provider.files} files are in place{example}"


def _requirement(name: str, version: str | None, floor: str) -> Finding:
    if version is None:
        return Finding(AREA, name, Grade.FAIL, "not installed", f"pip install '{name}>={floor}'")
    if _numbers(version) < _numbers(floor):
        return Finding(
            AREA, name, Grade.FAIL, f"{version}, and {floor} is the oldest that works", f"pip install '{name}>={floor}'"
        )
    return Finding(AREA, name, Grade.OK, version)


def _servers(facts: Facts) -> Finding:
    check = "servers"
    ours = facts.versions.get(OURS)
    there = {name: facts.versions[name] for name in SERVERS if name in facts.versions}
    if not there:
        text = "from source" if facts.has_server_packages else "not installed: this Python can be a client's only"
        return Finding(AREA, check, Grade.OK, text)
    wrong = [f"{name} {version}" for name, version in there.items() if ours is not None and version != ours]
    missing = [f"no {name}" for name in SERVERS if name not in there]
    if wrong or missing:
        return Finding(
            AREA,
            check,
            Grade.FAIL,
            f"{', '.join(wrong + missing)} beside {OURS} {ours}; all must have one version",
            f"pip install '{OURS}[local]=={ours}'",
        )
    return Finding(AREA, check, Grade.OK, ", ".join(f"{name} {version}" for name, version in there.items()))


def _driver_packages(facts: Facts) -> Iterator[Finding]:
    for name in DRIVER_PACKAGES:
        if name in facts.versions:
            yield Finding(AREA, name, Grade.OK, facts.versions[name])
        else:
            yield Finding(
                AREA, name, Grade.FAIL, "not installed; the snapshot agent needs it", f"pip install {name}"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: enough to compare with a floor that has only such."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
