"""Each image is read once for all tests."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from image_files import NAMES, Image

read = functools.cache(Image)


@pytest.fixture(params=NAMES)
def image(request: pytest.FixtureRequest) -> Image:
    return read(request.param)


@pytest.fixture(scope="session")
def images() -> dict[str, Image]:
    return {name: read(name) for name in NAMES}


@pytest.fixture
def debs_lock() -> dict[str, list[str]]:
    """Version and hash of each Debian package, by its name."""
    lines = [line.split() for line in Path("images/debs.lock").read_text().splitlines() if not line.startswith("#")]
    return {name: rest for name, *rest in lines}
