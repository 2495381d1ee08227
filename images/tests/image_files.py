"""An image's archive, read as an OCI layout; its layers one by one, and what they make together."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

FOLDER = Path("images").absolute()
NAMES = ("client_example", "gpu_mock", "orchestrator", "snapshot_agent")
SERVERS = ("orchestrator", "snapshot_agent")
SITE = "usr/local/lib/python3.11/dist-packages"


@dataclass(frozen=True)
class Layer:
    """One layer, unpacked into memory."""

    members: tuple[tarfile.TarInfo, ...]
    contents: dict[str, bytes]
    """Of the regular files."""
    packed_size: int
    digest: str
    diff_id: str
    created_by: str


class Image:
    """All of one image."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.archive = FOLDER / f"{name}.tar"
        self.files: dict[str, bytes] = {}
        with tarfile.open(self.archive) as tar:
            for info in tar:
                stored = tar.extractfile(info)
                assert stored is not None, f"{info.name} is not a file"
                self.files[info.name] = stored.read()
        [self.descriptor] = json.loads(self.files["index.json"])["manifests"]
        self.manifest = json.loads(self.blob(self.descriptor))
        self.config = json.loads(self.blob(self.manifest["config"]))
        self.layers = [
            _unpack(self.blob(d), d["digest"], h["created_by"])
            for d, h in zip(self.manifest["layers"], self.config["history"], strict=True)
        ]
        self.digest = (FOLDER / f"{name}.digest").read_text().strip()
        self.bill: dict[str, Any] = json.loads((FOLDER / f"{name}.spdx.json").read_text())

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        return self.files["blobs/" + descriptor["digest"].replace(":", "/")]

    @functools.cached_property
    def tree(self) -> dict[str, tarfile.TarInfo]:
        """What a container sees: path and the entry of the topmost layer that has it."""
        return {info.name: info for layer in self.layers for info in layer.members}

    @functools.cached_property
    def contents(self) -> dict[str, bytes]:
        """Regular files and hard links."""
        found: dict[str, bytes] = {}
        for layer in self.layers:
            found.update(layer.contents)
        return found

    def follow(self, path: str) -> str | None:
        """The path after all symbolic links, None if it leads nowhere."""
        for _ in range(20):
            parts = path.strip("/").split("/")
            for n in range(1, len(parts) + 1):
                head = "/".join(parts[:n])
                if (info := self.tree.get(head)) is not None and info.issym():
                    target = posixpath.join("/", posixpath.dirname(head), info.linkname, *parts[n:])
                    path = posixpath.normpath(target)
                    break
            else:
                return "/".join(parts) if "/".join(parts) in self.tree else None
        raise AssertionError(f"{path}: too many links")

    def distributions(self) -> Iterator[Message]:
        """METADATA of each Python distribution."""
        for name, data in self.contents.items():
            if name.startswith(SITE) and name.endswith(".dist-info/METADATA"):
                yield Parser().parsestr(data.decode(), headersonly=True)

    def debian_packages(self) -> Iterator[Message]:
        """The control fields of each Debian package."""
        for name, data in self.contents.items():
            if name.startswith("var/lib/dpkg/status.d/"):
                yield Parser().parsestr(data.decode())


def _unpack(packed: bytes, digest: str, created_by: str) -> Layer:
    raw = gzip.decompress(packed)
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        members = tuple(tar)
        for info in members:
            if info.isreg() or info.islnk():
                stored = tar.extractfile(info)
                assert stored is not None
                contents[info.name] = stored.read()
    return Layer(members, contents, len(packed), digest, "sha256:" + hashlib.sha256(raw).hexdigest(), created_by)
