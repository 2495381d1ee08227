"""The overlays, built by whatever kustomize is on this machine."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
from pathlib import Path

import pytest

from timeslice_deploy import kubectl, manifests
from timeslice_deploy.manifests import Object

KUSTOMIZE = Path.cwd() / "deploy/kustomize"
OVERLAYS = manifests.overlays(KUSTOMIZE)
assert len(OVERLAYS) >= 3, f"no overlays below {KUSTOMIZE}: the tests would pass without looking"


@functools.cache
def built(overlay: str) -> list[Object]:
    """Its objects. Skips the test, loudly, on a machine without kubectl."""
    program = shutil.which("kubectl") or kubectl.built_by_kind(os.environ)
    if program is None:
        pytest.skip("NOT CHECKED: no kubectl here, and none that //tools/kind built, so no manifest was built")
    return asyncio.run(manifests.build(program, KUSTOMIZE, overlay))


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that name."""
    [found] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found
