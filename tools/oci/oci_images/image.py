"""An image in one tar file that is an OCI layout and a docker-archive at once, as `docker save` writes it.

containerd, podman, skopeo and kind take it as either; docker load takes it too.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oci_images.layer import Facts

NEVER = "1970-01-01T00:00:00Z"
"""The time at which all images were made, so that their bytes depend on their contents alone."""
PLATFORM = {"architecture": "amd64", "os": "linux"}
OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A layer file and what is known of it."""

    path: Path
    facts: Facts

    @property
    def what(self) -> str:
        """For the image's history."""
        return self.path.name.removesuffix(".tar.gz")


def as_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Blobs:
    """Content by its digest."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def add(self, data: bytes) -> dict[str, Any]:
        """Keep `data`; the digest and size that a descriptor needs."""
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}


def write_image(path: Path, ref: str, config: dict[str, Any], layers: list[PackedLayer]) -> str:
    """Write the image named `ref` (as "localhost/name:1"); the digest of its manifest."""
    blobs = Blobs()
    layer_blobs = [blobs.add(layer.path.read_bytes()) for layer in layers]
    config_blob = blobs.add(
        as_json(
            {
                **PLATFORM,
                "config": config,
                "created": NEVER,
                "history": [{"created": NEVER, "created_by": layer.what} for layer in layers],
                "rootfs": {"type": "layers", "diff_ids": [layer.facts.diff_id for layer in layers]},
            }
        )
    )
    manifest = blobs.add(
        as_json(
            {
                "config": {"mediaType": f"{OCI}.config.v1+json", **config_blob},
                "layers": [{"mediaType": f"{OCI}.layer.v1.tar+gzip", **blob} for blob in layer_blobs],
                "mediaType": f"{OCI}.manifest.v1+json",
                "schemaVersion": 2,
            }
        )
    )
    names = {"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": ref}
    index = {
        "manifests": [{"mediaType": f"{OCI}.manifest.v1+json", **manifest, "platform": PLATFORM, "annotations": names}],
        "mediaType": f"{OCI}.index.v1+json",
        "schemaVersion": 2,
    }
    docker = [
        {
            "Config": _place(config_blob),
            "Layers": [_place(blob) for blob in layer_blobs],
            "RepoTags": [ref],
        }
    ]
    files = {
        "index.json": as_json(index),
        "manifest.json": as_json(docker),
        "oci-layout": as_json({"imageLayoutVersion": "1.0.0"}),
        **blobs.files,
    }
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            tar.addfile(info, io.BytesIO(data))
    return str(manifest["digest"])


def _place(blob: dict[str, Any]) -> str:
    return "blobs/" + str(blob["digest"]).replace(":", "/")
