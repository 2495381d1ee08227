"""Small .deb files and wheels for tests."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

FREE = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: somebody
License: GPL-2+

Files: x
License: Expat
"""


def tar(files: dict[str, bytes], links: dict[str, str] | None = None, hard: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as out:
        for name, data in files.items():
            info = tarfile.TarInfo("./" + name)
            info.size, info.mtime, info.mode = len(data), 1234567, 0o755 if "/bin/" in name else 0o644
            out.addfile(info, io.BytesIO(data))
        for kind, pairs in ((tarfile.SYMTYPE, links), (tarfile.LNKTYPE, hard)):
            for name, target in (pairs or {}).items():
                info = tarfile.TarInfo("./" + name)
                info.type, info.linkname = kind, target
                out.addfile(info)
    return buffer.getvalue()


def deb(path: Path, name: str, data: bytes, version: str = "1:2.0-1") -> Path:
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nSource: src-{name}\nHomepage: https://h/\n"
    members = {"debian-binary": b"2.0\n", "control.tar.xz": tar({"control": control.encode()}), "data.tar.xz": data}
    raw = b"!<arch>\n"
    for member, content in members.items():
        raw += f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        raw += b"\n" * (len(content) % 2)
    path.write_bytes(raw)
    return path


def wheel(path: Path, files: dict[str, bytes], metadata: str = "License-Expression: MIT\n") -> Path:
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as out:
        for place, data in files.items():
            out.writestr(place.replace("DIST_INFO", info), data)
        out.writestr(f"{info}/METADATA", f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}")
        out.writestr(f"{info}/RECORD", "")
    return path
