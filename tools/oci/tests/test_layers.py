"""Layers: the same bytes for the same contents, and all that Debian packages and wheels hold in its place."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import packages
from oci_images.debs import CERTIFICATES, add_debs, add_system_files, read_deb
from oci_images.layer import Facts, Layer, Package
from oci_images.wheels import SITE, add_wheels


def names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_order_of_adding_does_not_matter(tmp_path: Path) -> None:
    one, other = Layer(), Layer()
    for layer, order in ((one, ("b/x", "a")), (other, ("a", "b/x"))):
        for name in order:
            layer.add_file(name, name.encode())
    one.write(tmp_path / "one")
    other.write(tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_entries_are_sorted_and_belong_to_nobody_of_this_machine(tmp_path: Path) -> None:
    layer = Layer()
    layer.add_file("b/c/d", b"x", 0o755)
    layer.add_file("a", b"y", uid=65532, gid=65532)
    layer.add_symlink("z", "a")
    layer.write(tmp_path / "layer.tar.gz")
    with tarfile.open(tmp_path / "layer.tar.gz") as tar:
        found = [(i.name, i.uid, i.gid, i.uname, i.mtime, oct(i.mode)) for i in tar]
    assert found == [
        ("a", 65532, 65532, "", 0, "0o644"),
        ("b", 0, 0, "", 0, "0o755"),
        ("b/c", 0, 0, "", 0, "0o755"),
        ("b/c/d", 0, 0, "", 0, "0o755"),
        ("z", 0, 0, "", 0, "0o777"),
    ]


def test_diff_id_is_the_hash_before_compression(tmp_path: Path) -> None:
    layer = Layer()
    layer.add_file("a", bytes(100_000))
    diff_id = layer.write(tmp_path / "layer.tar.gz")
    unpacked = gzip.decompress((tmp_path / "layer.tar.gz").read_bytes())
    assert diff_id == "sha256:" + hashlib.sha256(unpacked).hexdigest()


def test_hard_links_come_after_what_they_point_to(tmp_path: Path) -> None:
    layer = Layer()
    layer.add_hardlink("a", "z")
    layer.add_file("z", b"data")
    layer.write(tmp_path / "layer.tar.gz")
    assert names(tmp_path / "layer.tar.gz") == ["z", "a"]


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../b", ""])
def test_paths_that_leave_the_image_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no path in an image"):
        Layer().add_file(name, b"")


def test_facts_come_back_as_they_were_written(tmp_path: Path) -> None:
    facts = Facts("sha256:1", (Package("deb", "a", "1", "2", None, "see there"),))
    facts.write(tmp_path / "facts")
    assert Facts.read(tmp_path / "facts") == facts


def test_debian_packages_lie_below_usr_without_documents(tmp_path: Path) -> None:
    data = packages.tar(
        {
            "lib/x86_64-linux-gnu/libx.so.1.2": b"elf",
            "usr/bin/tool": b"program",
            "usr/share/doc/libx/copyright": packages.FREE.encode(),
            "usr/share/doc/libx/changelog.gz": b"news",
            "usr/share/man/man1/tool.1.gz": b"manual",
        },
        links={"lib/x86_64-linux-gnu/libx.so.1": "libx.so.1.2"},
        hard={"bin/other": "./usr/bin/tool"},
    )
    layer = Layer()
    [package] = add_debs(layer, [packages.deb(tmp_path / "libx.deb", "libx", data)], ["usr/share/man*"])
    assert sorted(layer.entries) == [
        "usr/bin/other",
        "usr/bin/tool",
        "usr/lib/x86_64-linux-gnu/libx.so.1",
        "usr/lib/x86_64-linux-gnu/libx.so.1.2",
        "usr/share/doc/libx/copyright",
        "var/lib/dpkg/status.d/libx",
    ]
    assert layer.entries["usr/bin/other"].link == "usr/bin/tool"
    assert layer.entries["usr/bin/tool"].mode == 0o755
    assert (package.name, package.version, package.source) == ("libx", "1:2.0-1", "src-libx")
    assert package.licence == "GPL-2.0-or-later AND MIT"
    assert package.sha256 == hashlib.sha256((tmp_path / "libx.deb").read_bytes()).hexdigest()


def test_a_package_without_documents_of_its_own_has_the_licence_of_the_one_it_points_to(tmp_path: Path) -> None:
    licence = packages.tar({"usr/share/doc/base/copyright": packages.FREE.encode()})
    pointer = packages.tar({}, links={"usr/share/doc/libx": "base"})
    layer = Layer()
    debs = [packages.deb(tmp_path / "a.deb", "libx", pointer), packages.deb(tmp_path / "b.deb", "base", licence)]
    assert [package.licence for package in add_debs(layer, debs, [])] == ["GPL-2.0-or-later AND MIT"] * 2
    assert layer.entries["usr/share/doc/libx"].link == "base"


def test_what_is_no_debian_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"x\.deb is no Debian package"):
        read_deb(tmp_path / "x.deb")


def test_trusted_certificates_become_one_file() -> None:
    layer = Layer()
    layer.add_file("usr/share/ca-certificates/mozilla/B.crt", b"BBB\n\n")
    layer.add_file("usr/share/ca-certificates/mozilla/A.crt", b"AAA")
    add_system_files(layer)
    assert layer.entries[CERTIFICATES].data == b"AAA\nBBB\n"
    assert not [name for name in layer.entries if name.startswith("usr/share/ca-certificates")]
    assert b":65532:" in layer.entries["etc/passwd"].data


def test_wheels_are_installed_trimmed_and_with_commands(tmp_path: Path) -> None:
    path = packages.wheel(
        tmp_path / "a_b-1.0-py3-none-any.whl",
        {
            "ab/__init__.py": b"",
            "ab/tests/test_x.py": b"",
            "ab/x.pyi": b"",
            "a_b-1.0.data/purelib/more.py": b"",
            "a_b-1.0.data/headers/x.h": b"",
            "DIST_INFO/entry_points.txt": b"[console_scripts]\nab = ab.main:Run.now\n[other]\nx = y\n",
        },
    )
    layer = Layer()
    [package] = add_wheels(layer, [path], ["*/tests/*", "*.pyi"], commands=True)
    assert sorted(layer.entries) == [
        "usr/local/bin/ab",
        f"{SITE}/a_b-1.0.dist-info/METADATA",
        f"{SITE}/a_b-1.0.dist-info/entry_points.txt",
        f"{SITE}/ab/__init__.py",
        f"{SITE}/more.py",
    ]
    assert b"from ab.main import Run\n" in layer.entries["usr/local/bin/ab"].data
    assert (package.name, package.version, package.licence) == ("a_b", "1.0", "MIT")


SOURCE = '''
"""Doc."""
KNOWN = {"a", "b", "c", "d", "e"}
def known(self, x: str, *, name: float = 1.5) -> bool:
    return x in {"alpha", "beta", "gamma", "delta"} and name not in (None, 2j, "self")
'''
COMPILE = """
import sys
from pathlib import Path
from oci_images.bytecode import add_bytecode
from oci_images.layer import Layer
layer = Layer()
for path in sys.argv[2:]:
    layer.add_file(f"usr/lib/python3.11/{Path(path).name}", Path(path).read_bytes())
add_bytecode(layer)
layer.write(Path(sys.argv[1]))
"""


def test_bytecode_is_the_same_whatever_the_process_did_before(tmp_path: Path) -> None:
    """Neither the seed of hashes nor other modules that were compiled before, which hold on to the same strings."""
    module, other = tmp_path / "m.py", tmp_path / "a.py"
    module.write_text(SOURCE)
    other.write_text("import argparse, decimal\nself = 'alpha', 'beta', 2j\n")
    found = set()
    for number, sources in enumerate(([module], [other, module], [module])):
        out = tmp_path / f"layer{number}.tar.gz"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(number)}
        subprocess.run([sys.executable, "-c", COMPILE, str(out), *map(str, sources)], check=True, env=env)
        with tarfile.open(out) as tar:
            compiled = tar.extractfile("usr/lib/python3.11/__pycache__/m.cpython-311.pyc")
            assert compiled is not None
            found.add(compiled.read())
    assert len(found) == 1


def test_bytecode_is_what_the_interpreter_takes(tmp_path: Path) -> None:
    """From a folder that cannot be written, with another time stamp: the source is not even read."""
    (tmp_path / "m.py").write_text("import sys\nprint(__cached__, sys._getframe().f_code.co_filename)\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", COMPILE, str(tmp_path / "l"), str(tmp_path / "m.py")], check=True, env=env)
    with tarfile.open(tmp_path / "l") as tar:
        tar.extractall(tmp_path)
    folder = tmp_path / "usr/lib/python3.11"
    (folder / "m.py").write_text("raise SystemExit('compiled anew')\n")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    told = subprocess.run([sys.executable, "-c", "import m"], env=env, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(folder / "__pycache__/m.cpython-311.pyc"), str(folder / "m.py")]


def test_what_does_not_compile_is_left_as_it_is() -> None:
    from oci_images.bytecode import add_bytecode

    layer = Layer()
    layer.add_file("usr/lib/python3.11/bad.py", b"print 'two'\n")
    layer.add_file("usr/share/x.py", b"pass\n")
    add_bytecode(layer)
    assert sorted(layer.entries) == ["usr/lib/python3.11/bad.py", "usr/share/x.py"]
