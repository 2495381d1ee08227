"""What users type: the commands of docs/kubernetes.md, word for word."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from installation import ROOT
from kube import Kube

DOCS = "docs/kubernetes.md"
EXAMPLES = "examples/kubernetes"


class User:
    """Somebody with a checkout of the repository who does what the docs say.

    `instead`: words of the docs, and what stands there in the test.
    """

    def __init__(self, kube: Kube, folder: Path, instead: Mapping[str, str]) -> None:
        self._kube, self._folder, self._instead = kube, folder, instead
        self._lines = [line.split("  #")[0].strip() for line in (ROOT / DOCS).read_text().splitlines()]

    def types(self, command: str, instead: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> str:
        """Its stdout. An AssertionError where it fails, or where the docs have no such line."""
        assert command in self._lines, f"not in {DOCS}: {command}"
        for word, other in {**self._instead, **(instead or {})}.items():
            command = command.replace(word, other)
        kubectl = shlex.join([self._kube.kubectl, "--context", self._kube.context])
        script = f'set -o pipefail; kubectl() {{ {kubectl} "$@"; }}; {command}'
        done = subprocess.run(
            ["bash", "-c", script], cwd=self._folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def checkout() -> Iterator[Path]:
    """The examples' manifests as files: where Bazel runs a test they are links, which kustomize does not follow."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as folder:
        shutil.copytree(ROOT / EXAMPLES, Path(folder) / EXAMPLES)
        yield Path(folder)
