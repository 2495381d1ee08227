"""Image archives as `ctr images import` and `kind load image-archive` take them, from files alone."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """One image with one layer."""

    ref: str
    files: Mapping[str, Path]
    """Place in the image: file here. Each is a program, so it is executable there."""

    entrypoint: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    """Place in the image: what the symbolic link says."""


def layer(image: Image) -> bytes:
    """An uncompressed layer; the same bytes from the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("etc", "run", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name, target in sorted(image.links.items()):
            link = tarfile.TarInfo(name.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, source in sorted(image.files.items()):
            data = source.read_bytes()
            file = tarfile.TarInfo(name.lstrip("/"))
            file.mode, file.size = 0o755, len(data)
            tar.addfile(file, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(out: Path, images: Sequence[Image], architecture: str) -> None:
    """A docker-archive with several images."""
    manifest = []
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        for image in images:
            blob = layer(image)
            digest = hashlib.sha256(blob).hexdigest()
            config = {"Env": [f"PATH={PATH}"]} | ({"Entrypoint": list(image.entrypoint)} if image.entrypoint else {})
            text = json.dumps(
                {
                    "architecture": architecture,
                    "os": "linux",
                    "config": config,
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                }
            ).encode()
            name = hashlib.sha256(text).hexdigest() + ".json"
            add(f"{digest}.tar", blob)
            add(name, text)
            manifest.append({"Config": name, "RepoTags": [image.ref], "Layers": [f"{digest}.tar"]})
        add("manifest.json", json.dumps(manifest).encode())
