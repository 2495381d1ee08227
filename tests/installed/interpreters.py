"""Pythons on this machine, environments made with them, and what is installed there: never from a network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

INSTALL_TIMEOUT_S = 120


def find_python(version: str) -> Path | None:
    """An interpreter of this version ("3.12"): the one that runs this, one on PATH, or one of pyenv's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    on_path = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    of_pyenv = [p for root in _pyenv_roots() for p in sorted(root.glob(f"versions/{version}*/bin/python{version}"))]
    return next((python for python in [*on_path, *of_pyenv] if _runs(python)), None)


def _runs(python: Path) -> bool:
    """Not so pyenv's stand-ins on PATH, for a version that is not switched on."""
    return subprocess.run([str(python), "-I", "-c", ""], capture_output=True, check=False).returncode == 0


def _pyenv_roots() -> Iterator[Path]:
    if root := os.environ.get("PYENV_ROOT"):
        yield Path(root)
    yield Path(pwd.getpwuid(os.getuid()).pw_dir) / ".pyenv"  # Not $HOME: a test's is a folder of its own.


def clean_environment() -> dict[str, str]:
    """Ours, without what leads a Python or the client to what this test itself is made of."""
    left_out = ("PYTHON", "RUNFILES", "TIMESLICE_", "GPU_MOCK_", "PIP_", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "COVERAGE")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


class Environment:
    """A new virtual environment in `folder`."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        # Debian's own python3.11 cannot make one with pip, but has a pip that installs into one without.
        self._has_pip = python != Path(sys.executable)
        options = [] if self._has_pip else ["--without-pip"]
        self._run([str(python), "-I", "-m", "venv", *options, str(folder)])

    def install(self, requirements: Sequence[str], find_links: Sequence[Path]) -> None:
        """pip install, from these folders alone."""
        pip = [str(self.python), "-I", "-m", "pip"]
        if not self._has_pip:
            pip = [sys.executable, "-I", "-m", "pip", "--python", str(self.python)]
        links = [word for folder in find_links for word in ("--find-links", str(folder))]
        options = ["--isolated", "--disable-pip-version-check", "--no-cache-dir"]
        self._run([*pip, *options, "install", "--quiet", "--no-index", *links, *requirements])

    def versions(self) -> dict[str, str]:
        """What is installed: version by name."""
        script = "from importlib.metadata import distributions\nfor d in distributions(): print(d.name, d.version)"
        return dict(line.split() for line in self._run([str(self.python), "-I", "-c", script]).splitlines())

    def command(self, name: str) -> str:
        """The path of an installed command."""
        return str(self.folder / "bin" / name)

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
        )
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout
