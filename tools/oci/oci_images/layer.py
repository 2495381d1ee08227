"""One layer of an image: the same contents give the same bytes, wherever and by whomever it is packed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

LEVEL = 9


@dataclass(frozen=True, slots=True)
class Package:
    """What a layer holds of others' (or our) distributions, for the SBOM."""

    kind: str
    """deb or pypi"""
    name: str
    version: str
    sha256: str
    """Of the .deb or the wheel."""
    licence: str | None
    """An SPDX expression; None: not known."""
    licence_notes: str = ""
    homepage: str = ""
    architecture: str = ""
    """Debian's word for it; empty for Python."""
    source: str = ""
    """Debian's source package and its version, where they differ from the binary's."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the image's writer needs to know of a layer besides its bytes."""

    diff_id: str
    """sha256:... of the tar file before compression."""
    packages: tuple[Package, ...]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Facts:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return cls(stored["diff_id"], tuple(Package(**package) for package in stored["packages"]))


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link."""

    kind: bytes
    mode: int
    data: bytes = b""
    link: str = ""
    uid: int = 0
    gid: int = 0


class Layer:
    """Entries by their path in the image, without a leading slash. A later entry replaces an earlier one."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def _add(self, name: str, entry: Entry) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{name!r} is no path in an image")
        self.entries[str(path)] = entry

    def add_file(self, name: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        self._add(name, Entry(tarfile.REGTYPE, mode, data, "", uid, gid))

    def add_folder(self, name: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        self._add(name, Entry(tarfile.DIRTYPE, mode, b"", "", uid, gid))

    def add_symlink(self, name: str, target: str) -> None:
        self._add(name, Entry(tarfile.SYMTYPE, 0o777, link=target))

    def add_hardlink(self, name: str, target: str, mode: int = 0o644) -> None:
        self._add(name, Entry(tarfile.LNKTYPE, mode, link=target))

    def drop(self, unwanted: Callable[[str], bool]) -> None:
        """Take out each file, folder and link that `unwanted` says yes to."""
        self.entries = {name: entry for name, entry in self.entries.items() if not unwanted(name)}

    def write(self, path: Path) -> str:
        """Write the layer as tar.gz; its diff_id."""
        self._add_parents()
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
            hashed = _Hashed(packed)
            with tarfile.open(fileobj=hashed, mode="w", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                # A hard link comes after what it points to.
                for name in sorted(self.entries, key=lambda n: (self.entries[n].kind == tarfile.LNKTYPE, n)):
                    _write_entry(tar, name, self.entries[name])
        return hashed.digest()

    def _add_parents(self) -> None:
        for name in list(self.entries):
            for parent in map(str, PurePosixPath(name).parents):
                if parent != "." and parent not in self.entries:
                    self.add_folder(parent)


def _write_entry(tar: tarfile.TarFile, name: str, entry: Entry) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = entry.kind, entry.mode, entry.link
    info.uid, info.gid, info.mtime = entry.uid, entry.gid, 0
    info.size = len(entry.data)
    tar.addfile(info, io.BytesIO(entry.data))


class _Hashed:
    """A file for tarfile to write to, which remembers the hash of what went through."""

    def __init__(self, beneath: IO[bytes] | gzip.GzipFile) -> None:
        self._beneath = beneath
        self._hash = hashlib.sha256()
        self._written = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._written += len(data)
        return self._beneath.write(data)

    def tell(self) -> int:
        return self._written

    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()
