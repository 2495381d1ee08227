"""What is installed here, by the names of distributions."""

from __future__ import annotations

import platform
from importlib import metadata

DISTRIBUTION = "timeslice-rl"


def installed_version(distribution: str) -> str | None:
    """Its version; None: it is not installed as a distribution (a checkout on PYTHONPATH is not)."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def version_line() -> str:
    """What `timeslice --version` prints."""
    ours = installed_version(DISTRIBUTION) or "from source"
    return f"timeslice {ours} (Python {platform.python_version()}, grpcio {installed_version('grpcio') or 'missing'})"
