"""A layer of Python distributions, installed from their wheels."""

from __future__ import annotations

import configparser
import hashlib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from fnmatch import fnmatchcase
from pathlib import Path

from oci_images.layer import Layer, Package
from oci_images.licences import python_licence

SITE = "usr/local/lib/python3.11/dist-packages"
"""On the path of Debian's Python, and not the place of Debian's own packages."""
SCRIPTS = "usr/local/bin"
COMMAND = """#!/usr/bin/python3
import sys
from {module} import {root}
sys.exit({attribute}())
"""


def add_wheels(layer: Layer, paths: list[Path], leave_out: list[str], commands: bool) -> list[Package]:
    """Install the wheels, except files that match a pattern of `leave_out` (`*` matches slashes too).

    Patterns are matched with the path below dist-packages. With `commands` the distributions' commands come too.
    """
    packages = []
    for path in sorted(paths):
        with zipfile.ZipFile(path) as wheel:
            for name, info in _placed(wheel):
                if not any(fnmatchcase(name, pattern) for pattern in leave_out):
                    mode = 0o755 if (info.external_attr >> 16) & 0o111 else 0o644
                    layer.add_file(f"{SITE}/{name}", wheel.read(info), mode)
            if commands:
                _add_commands(layer, wheel)
            packages.append(_package(wheel, path))
    return packages


def _placed(wheel: zipfile.ZipFile) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    """Each file with its place below dist-packages; files for other places (headers, scripts) are no part of an image.

    RECORD lists what pip would have installed, which is not what the image holds.
    """
    for info in wheel.infolist():
        top, _, rest = info.filename.partition("/")
        if info.is_dir() or info.filename.endswith(".dist-info/RECORD"):
            continue
        if not top.endswith(".data"):
            yield info.filename, info
        elif rest.startswith(("purelib/", "platlib/")):
            yield rest.partition("/")[2], info


def _dist_info(wheel: zipfile.ZipFile, file: str) -> str | None:
    for name in wheel.namelist():
        folder, _, rest = name.partition("/")
        if folder.endswith(".dist-info") and rest == file:
            return wheel.read(name).decode()
    return None


def _add_commands(layer: Layer, wheel: zipfile.ZipFile) -> None:
    entry_points = configparser.ConfigParser(delimiters=("=",))
    entry_points.optionxform = str  # type: ignore[assignment,method-assign]
    entry_points.read_string(_dist_info(wheel, "entry_points.txt") or "")
    if not entry_points.has_section("console_scripts"):
        return
    for name, target in entry_points["console_scripts"].items():
        module, _, attribute = target.partition(":")
        script = COMMAND.format(module=module, root=attribute.split(".")[0], attribute=attribute)
        layer.add_file(f"{SCRIPTS}/{name}", script.encode(), 0o755)


def _package(wheel: zipfile.ZipFile, path: Path) -> Package:
    text = _dist_info(wheel, "METADATA")
    if text is None:
        raise ValueError(f"{path} is no wheel: it has no METADATA")
    metadata = Parser().parsestr(text, headersonly=True)
    homepage = metadata.get("Home-page") or ""
    for url in metadata.get_all("Project-URL", []):
        label, _, address = url.partition(",")
        if label.strip().lower() in ("homepage", "home", "source", "repository") and not homepage:
            homepage = address.strip()
    licence, notes = python_licence(metadata)
    return Package(
        "pypi",
        str(metadata["Name"]),
        str(metadata["Version"]),
        hashlib.sha256(path.read_bytes()).hexdigest(),
        licence,
        notes,
        homepage=homepage,
    )
