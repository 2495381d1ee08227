"""What was built once, by a hash of all that it was built from.

An entry is a folder that appears under its name only when it is whole and on the disk; what a killed build left is
never taken for one. Two builds of the same thing wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from timeslice_kind.processes import run
from timeslice_kind.progress import say


def cache_folder(env: Mapping[str, str]) -> Path:
    """~/.cache/timeslice/kind, or wherever XDG_CACHE_HOME says."""
    base = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "timeslice" / "kind"


def content_key(*parts: str | bytes | Path) -> str:
    """Twelve hex digits over texts, and over names and contents of files and folders, in this order."""
    digest = hashlib.sha256()

    def add(kind: bytes, data: bytes) -> None:
        digest.update(kind + str(len(data)).encode() + b":" + data)

    for part in parts:
        if isinstance(part, Path):
            files = sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]
            for file in files:
                add(b"name", str(file.relative_to(part) if part.is_dir() else file.name).encode())
                add(b"executable", str(os.access(file, os.X_OK)).encode())
                add(b"data", file.read_bytes())
        else:
            add(b"text", part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, whatever ends it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Cache:
    """Entries named NAME-KEY below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, key: str) -> Path:
        return self.folder / f"{name}-{key}"

    def get(self, name: str, key: str, make: Callable[[Path], None]) -> Path:
        """The entry, made by `make(empty folder)` if it is not there yet; an error of `make` leaves none."""
        entry = self.path(name, key)
        if entry.exists():
            return entry
        with locked(self.folder / f"{name}.lock"):
            if entry.exists():
                return entry
            part = self.folder / f".part-{name}"
            remove_tree(part)
            part.mkdir()
            make(part)
            # One call for the whole file system of the folder: its files may be many thousands.
            run(["sync", "--file-system", str(part)])
            part.rename(entry)
            sync_folder(self.folder)
        return entry

    def remove_others(self, wanted: set[Path]) -> list[Path]:
        """Remove the entries that are not wanted and what killed builds left; return what went."""
        gone = []
        for path in sorted(self.folder.glob("*")):
            if path.is_dir() and path not in wanted and path.name != "labs":
                remove_tree(path)
                gone.append(path)
        return gone


def remove_tree(path: Path) -> None:
    """rm -rf, that also removes what Go's module cache made read-only."""
    if path.exists():
        run(["chmod", "--recursive", "u+w", str(path)])
        shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
