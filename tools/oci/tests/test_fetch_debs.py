"""Debian packages by their lock: the locked version, else the newest and a word about it, never a wrong hash."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path("tools/oci/fetch_debs.sh").absolute()
APT_CACHE = """#!/bin/sh
printf 'Package: libx++6\\nVersion: 1:2.0-1\\n\\nPackage: other\\nVersion: 1.0\\n\\n'
"""
APT_GET = """#!/bin/sh
echo "$@" >> "$LOG"
for package; do
  case $package in
    download | -qq) ;;
    *) name=${package%%=*}; printf '%s' "$name" > "${name}_1%3a2.0-1_amd64.deb" ;;
  esac
done
"""


class Mirror:
    """An apt whose mirror has libx++6 1:2.0-1 and other 1.0; a package's contents are its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        (folder / "bin").mkdir()
        for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("private_apt", "mkdir -p $1\n")):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def fetch(self, *locked: str, strict: bool = False) -> subprocess.CompletedProcess[str]:
        lock = self.folder / "lock"
        lock.write_text("\n".join(["# suite bookworm", *locked]) + "\n")
        out = self.folder / "out"
        out.mkdir()
        env = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "LOG": str(self.log)}
        return subprocess.run(
            ["sh", str(SCRIPT), str(lock), str(self.folder / "bin/private_apt")],
            cwd=out,
            env={**env, **({"STRICT_DEBS": "1"} if strict else {})},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def fetched(self) -> list[str]:
        return sorted(p.name for p in (self.folder / "out").glob("*.deb"))


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_locked_versions_are_asked_for_and_named_plainly(mirror: Mirror) -> None:
    done = mirror.fetch(f"libx++6 1:2.0-1 {sha256('libx++6')}", f"other 1.0 {sha256('other')}", strict=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert mirror.log.read_text() == "download -qq libx++6=1:2.0-1 other=1.0\n"
    assert mirror.fetched == ["libx++6.deb", "other.deb"]


def test_another_hash_is_an_error(mirror: Mirror) -> None:
    done = mirror.fetch(f"libx++6 1:2.0-1 {sha256('something else')}")
    assert done.returncode == 1
    assert "not that of the lock. Run ./bazelw run //images:lock_debs" in done.stderr


def test_a_version_that_is_gone_is_named_and_the_newest_taken(mirror: Mirror) -> None:
    done = mirror.fetch(f"libx++6 1:1.9-1 {sha256('old')}", f"other 1.0 {sha256('other')}")
    assert done.returncode == 0
    assert "No longer in Debian bookworm: libx++6=1:1.9-1." in done.stdout
    assert mirror.fetched == ["libx++6.deb", "other.deb"]


def test_a_version_that_is_gone_is_an_error_where_only_the_locked_will_do(mirror: Mirror) -> None:
    done = mirror.fetch(f"libx++6 1:1.9-1 {sha256('old')}", strict=True)
    assert done.returncode == 1
    assert not mirror.log.exists(), "fetched all the same"
