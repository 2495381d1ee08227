"""The layer beneath all others: files of Debian packages, and the few that their installation would have made."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from fnmatch import fnmatchcase
from pathlib import Path

from oci_images.layer import Layer, Package
from oci_images.licences import debian_licence

MERGED = ("bin", "lib", "lib64", "sbin")
"""Folders that are links into usr; packages of bookworm still name them."""
NONROOT = 65532
PASSWD = f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{NONROOT}:{NONROOT}:nonroot:/home/nonroot:/sbin/nologin\n"
GROUP = f"root:x:0:\nnonroot:x:{NONROOT}:\n"
NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, slots=True)
class Deb:
    """A Debian package: its control fields as text, and the tar file of its contents."""

    control: str
    data: tarfile.TarFile
    sha256: str

    @property
    def fields(self) -> Message:
        return Parser().parsestr(self.control)


def read_deb(path: Path) -> Deb:
    """Raises ValueError if `path` is no Debian package."""
    raw = path.read_bytes()
    parts = dict(_ar_members(path, raw))
    tars = {
        kind: tarfile.open(fileobj=io.BytesIO(data))  # noqa: SIM115 (lives in memory only)
        for kind in ("control", "data")
        for name, data in parts.items()
        if name.startswith(kind + ".tar")
    }
    if len(tars) != 2:
        raise ValueError(f"{path} is no Debian package: it has {sorted(parts)}")
    control = tars["control"].extractfile("./control")
    assert control is not None
    return Deb(control.read().decode(), tars["data"], hashlib.sha256(raw).hexdigest())


def _ar_members(path: Path, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """See ar(5): 60 bytes of header for each member, which starts at an even offset."""
    if not raw.startswith(b"!<arch>\n"):
        raise ValueError(f"{path} is no Debian package: it does not start as an ar archive")
    at = 8
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode().rstrip(" /"), int(raw[at + 48 : at + 58])
        yield name, raw[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def add_debs(layer: Layer, paths: list[Path], leave_out: list[str]) -> list[Package]:
    """Add what the packages hold, except paths that match a pattern of `leave_out` (`*` matches slashes too).

    Of the documents only the licences stay.
    """
    packages = []
    debs = [read_deb(path) for path in sorted(paths)]
    for deb in debs:
        _add_contents(layer, deb)
    for deb in debs:
        name, version = deb.fields["Package"], deb.fields["Version"]
        # Where scanners of images without dpkg look for packages.
        layer.add_file(f"var/lib/dpkg/status.d/{name}", deb.control.encode())
        packages.append(
            Package(
                "deb",
                name,
                version,
                deb.sha256,
                debian_licence(_copyright(layer, name)),
                f"See /usr/share/doc/{name}/copyright in the image.",
                homepage=deb.fields.get("Homepage", ""),
                architecture=deb.fields["Architecture"],
                source=deb.fields.get("Source", ""),
            )
        )
    documents = {
        name
        for name, entry in layer.entries.items()
        if name.startswith("usr/share/doc/") and not name.endswith("/copyright") and entry.kind != tarfile.SYMTYPE
    }
    layer.drop(lambda name: name in documents or any(fnmatchcase(name, pattern) for pattern in leave_out))
    return packages


def _copyright(layer: Layer, name: str) -> str:
    """A package built from the same source as another may have a link to the other's folder."""
    folder = layer.entries.get(f"usr/share/doc/{name}")
    of = folder.link if folder and folder.kind == tarfile.SYMTYPE else name
    file = layer.entries.get(f"usr/share/doc/{of}/copyright")
    return file.data.decode() if file else ""


def _add_contents(layer: Layer, deb: Deb) -> None:
    for info in deb.data:
        name = info.name.removeprefix("./").rstrip("/")
        if name in ("", "."):
            continue
        if name.split("/")[0] in MERGED:
            name = "usr/" + name
        if info.isdir():
            layer.add_folder(name, info.mode, info.uid, info.gid)
        elif info.issym():
            layer.add_symlink(name, info.linkname)
        elif info.islnk():
            layer.add_hardlink(name, info.linkname.removeprefix("./"), info.mode)
        elif info.isreg():
            contents = deb.data.extractfile(info)
            assert contents is not None
            layer.add_file(name, contents.read(), info.mode, info.uid, info.gid)
        else:
            raise ValueError(f"{deb.fields['Package']}: {name} is neither file, folder nor link")


def add_system_files(layer: Layer) -> None:
    """Add what a running system has and no package brings: users, name service, trusted certificates, links."""
    for top in MERGED:
        layer.add_symlink(top, "usr/" + top)
    layer.add_symlink("usr/bin/python3", "python3.11")
    layer.add_symlink("var/run", "/run")
    layer.add_symlink("var/lock", "/run/lock")
    layer.add_folder("run/lock", 0o1777)
    layer.add_folder("tmp", 0o1777)
    layer.add_folder("var/tmp", 0o1777)
    layer.add_folder("root", 0o700)
    layer.add_folder("home/nonroot", 0o700, NONROOT, NONROOT)
    layer.add_file("etc/passwd", PASSWD.encode())
    layer.add_file("etc/group", GROUP.encode())
    layer.add_file("etc/nsswitch.conf", NSSWITCH.encode())
    bundle = [
        entry.data.rstrip() + b"\n"
        for name, entry in sorted(layer.entries.items())
        if name.startswith("usr/share/ca-certificates/") and name.endswith(".crt")
    ]
    if bundle:
        layer.add_file(CERTIFICATES, b"".join(bundle))
        # Where OpenSSL looks unless told otherwise.
        layer.add_symlink("usr/lib/ssl/certs", "/etc/ssl/certs")
        layer.add_symlink("usr/lib/ssl/cert.pem", "/" + CERTIFICATES)
        layer.drop(lambda name: name.startswith("usr/share/ca-certificates"))
