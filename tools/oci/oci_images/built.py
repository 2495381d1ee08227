"""The images that Bazel has built, for the commands that bring them somewhere."""

from __future__ import annotations

import argparse
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """One image's files, side by side in a folder."""

    target: str
    """Bazel's name for it, as "snapshot_agent"."""
    archive: Path
    ref: str
    """As "localhost/timeslice-snapshot-agent:0.1.0"."""
    digest: str

    @property
    def title(self) -> str:
        """The name without a registry and a tag."""
        return self.ref.rpartition("/")[2].partition(":")[0]

    @property
    def tag(self) -> str:
        return self.ref.rpartition(":")[2]

    @property
    def size_mb(self) -> float:
        """In units of 1,000,000 bytes, layers compressed."""
        return self.archive.stat().st_size / 1e6


def built_images(folder: Path) -> list[BuiltImage]:
    """The images in `folder`, by target."""
    images = []
    for archive in sorted(folder.glob("*.tar")):
        digest = archive.with_suffix(".digest").read_text(encoding="utf-8").strip()
        with tarfile.open(archive) as tar:
            stored = tar.extractfile("manifest.json")
            assert stored is not None
            [description] = json.load(stored)
        images.append(BuiltImage(archive.stem, archive, description["RepoTags"][0], digest))
    return images


def add_choice(parser: argparse.ArgumentParser, images: list[BuiltImage]) -> None:
    """Let the command's user name some of the images; without a name all are meant."""
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        type=lambda text: text.replace("-", "_").removeprefix("timeslice_"),
        help=f"only these of: {', '.join(i.target for i in images)} (all unless named)",
    )


def chosen(parser: argparse.ArgumentParser, images: list[BuiltImage], names: list[str]) -> list[BuiltImage]:
    """The images named, in their order; exits with a message if one is not there."""
    if unknown := sorted(set(names) - {i.target for i in images}):
        parser.error(f"no image {', '.join(unknown)}; there are: {', '.join(i.target for i in images)}")
    return [i for i in images if not names or i.target in names]
