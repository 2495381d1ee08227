"""What is in the images: all that is needed, nothing else, and nothing of the machine that built them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from packaging.requirements import Requirement

from image_files import FOLDER, NAMES, SERVERS, SITE, Image

VERSION = re.search(r'VERSION = "(.+)"', Path("tools/wheel/version.bzl").read_text()).group(1)  # type: ignore[union-attr]
WHEELS = sorted(Path("wheels").glob("*.whl"))
MB = 1_000_000
MAX_SIZE = {
    # scipy, which scikit-learn wants, is half of it.
    "client_example": 110 * MB,
    "gpu_mock": 60 * MB,
    "orchestrator": 60 * MB,
    "snapshot_agent": 60 * MB,
}
"""Of the archive, layers compressed."""
MAX_CODE = 2 * MB
"""What a change of our code pushes."""
SHELLS = {"ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "toybox", "zsh"}
FROM_THE_NODE = {"libcuda.so.1", "libnvidia-ml.so.1"}
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64")


def test_all_images_are_looked_at() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.tar")) == sorted(NAMES)


def test_it_is_an_oci_layout_with_intact_blobs(image: Image) -> None:
    assert json.loads(image.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    blobs = {name: data for name, data in image.files.items() if name.startswith("blobs/")}
    assert len(blobs) == len(image.layers) + 2
    for name, data in blobs.items():
        assert name == "blobs/sha256/" + hashlib.sha256(data).hexdigest()
    for descriptor in (image.descriptor, image.manifest["config"], *image.manifest["layers"]):
        assert descriptor["size"] == len(image.blob(descriptor))
    assert image.digest == image.descriptor["digest"]
    assert image.config["rootfs"]["diff_ids"] == [layer.diff_id for layer in image.layers]


def test_it_is_a_docker_archive_of_the_same_blobs(image: Image) -> None:
    [docker] = json.loads(image.files["manifest.json"])
    assert image.files[docker["Config"]] == image.blob(image.manifest["config"])
    assert [image.files[path] for path in docker["Layers"]] == [image.blob(d) for d in image.manifest["layers"]]
    title = f"timeslice-{image.name.replace('_', '-')}"
    assert docker["RepoTags"] == [f"localhost/{title}:{VERSION}"]
    assert image.descriptor["annotations"]["io.containerd.image.name"] == docker["RepoTags"][0]


def test_labels_say_what_it_is(image: Image) -> None:
    labels = image.config["config"]["Labels"]
    assert labels.pop("org.opencontainers.image.description").startswith("timeslice: ")
    assert labels.pop("org.opencontainers.image.source").startswith("https://")
    assert labels == {
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.title": f"timeslice-{image.name.replace('_', '-')}",
        "org.opencontainers.image.version": VERSION,
    }


def test_orchestrator_runs_as_nobody_in_particular(images: dict[str, Image]) -> None:
    image = images["orchestrator"]
    assert image.config["config"]["User"] == "65532:65532"
    assert re.search(rb"(?m)^nonroot:x:65532:65532:", image.contents["etc/passwd"])
    assert (image.tree["home/nonroot"].uid, image.tree["home/nonroot"].mode) == (65532, 0o700)


def test_servers_start_their_module(images: dict[str, Image]) -> None:
    modules = {
        "gpu_mock": "gpu_mock_kubernetes",
        "orchestrator": "orchestrator",
        "snapshot_agent": "snapshot_agent_server",
    }
    for name, module in modules.items():
        entrypoint = images[name].config["config"]["Entrypoint"]
        assert entrypoint == ["/usr/bin/python3", "-m", module]
        assert images[name].follow(entrypoint[0]) == "usr/bin/python3.11"
        assert f"{SITE}/{module}/__main__.py" in images[name].tree


def shells(image: Image) -> set[str]:
    """Programs that are shells, by name or by what is in them, and scripts that want one."""
    found = {i.name for layer in image.layers for i in layer.members if i.name.rsplit("/", 1)[-1] in SHELLS}
    for layer in image.layers:
        for path, data in layer.contents.items():
            script = data.startswith(b"#!") and b"python" not in data.splitlines()[0] and image.tree[path].mode & 0o111
            if script or b"BusyBox v" in data:
                found.add(path)
    return found


@pytest.mark.parametrize("name", [*SERVERS, "gpu_mock"])
def test_there_is_no_shell_and_nothing_for_one(images: dict[str, Image], name: str) -> None:
    assert shells(images[name]) == set()
    assert {"usr/bin/busybox", "usr/bin/sh"} <= shells(images["client_example"]), "it would not be found"


def test_the_example_has_a_shell_with_commands_that_are_there(images: dict[str, Image]) -> None:
    image = images["client_example"]
    for command in ("sh", "ls", "sleep", "cat"):
        assert image.follow(f"bin/{command}") == "usr/bin/busybox"


def test_nothing_tells_who_built_it(image: Image) -> None:
    """No user of the machine, no time; entries in order, hard links last."""
    assert image.config["created"] == "1970-01-01T00:00:00Z"
    for layer in image.layers:
        assert {(i.uid, i.uname, i.gname, i.mtime) for i in layer.members} <= {(0, "", "", 0), (65532, "", "", 0)}
        assert {i.gid for i in layer.members} <= {0, 50, 65532}  # 50: staff, of Debian's base-files
        names = [(i.islnk(), i.name) for i in layer.members]
        assert names == sorted(set(names))
        where = str(Path.cwd()).split("/execroot/")[0].encode()
        assert not [name for name, data in layer.contents.items() if where in data]


def test_no_program_changes_its_user(image: Image) -> None:
    assert not [i.name for layer in image.layers for i in layer.members if i.isreg() and i.mode & 0o6000]
    assert not [i.name for layer in image.layers for i in layer.members if i.isreg() and i.mode & 0o002]


@pytest.mark.parametrize(
    "pattern",
    ["*/pip/*", "*/tests/*", "*.pyi", "*.a", "*/man/man?/*", "usr/share/locale/*", "*/changelog*", "*/ensurepip/*"],
)
def test_it_has_no(image: Image, pattern: str) -> None:
    assert not [path for path in image.contents if fnmatchcase(path, pattern)]


def test_each_debian_package_comes_with_its_licence(image: Image) -> None:
    for package in image.debian_packages():
        path = image.follow(f"usr/share/doc/{package['Package']}/copyright")
        assert path is not None
        assert image.contents[path]


def test_all_python_is_compiled(image: Image) -> None:
    """A container may have a read-only root, and compiling anew takes seconds at each start."""
    sources = {p for p in image.contents if p.startswith((SITE, "usr/lib/python3.11/")) and p.endswith(".py")}
    assert len(sources) > 500
    flags = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")  # taken without a look at the source
    for path in sorted(p for p in sources if image.contents[p]):
        place = PurePosixPath(path)
        compiled = image.contents.get(f"{place.parent}/__pycache__/{place.stem}.cpython-311.pyc")
        if compiled is None:
            with pytest.raises(SyntaxError):
                compile(image.contents[path], path, "exec", dont_inherit=True)
        else:
            assert compiled.startswith(flags + importlib.util.source_hash(image.contents[path])), path


def needed(data: bytes) -> set[str]:
    dynamic = [s for s in ELFFile(io.BytesIO(data)).iter_sections() if isinstance(s, DynamicSection)]
    return {tag.needed for section in dynamic for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}


def test_every_library_that_is_needed_is_there(image: Image) -> None:
    """Of programs, libraries and Python's extensions; a wheel's own libraries lie beside it."""
    elf = {path: data for path, data in image.contents.items() if data.startswith(b"\x7fELF")}
    assert len(elf) > 50
    by_name = {path.rsplit("/", 1)[-1] for path in elf}
    missing = {
        (path, library)
        for path, data in elf.items()
        for library in needed(data)
        if not any(image.follow(f"{folder}/{library}") for folder in LIBRARY_FOLDERS)
        and not (path.startswith(SITE) and library in by_name)
    }
    assert not missing


def test_every_distribution_that_is_needed_is_there(image: Image) -> None:
    there = {re.sub("[-_.]+", "-", d["Name"]).lower(): d for d in image.distributions()}
    environment = {"python_version": "3.11", "python_full_version": "3.11.2", "extra": "", "sys_platform": "linux"}
    missing = []
    for name, distribution in there.items():
        for requirement in map(Requirement, distribution.get_all("Requires-Dist", [])):
            if requirement.marker is None or requirement.marker.evaluate(environment):
                found = there.get(re.sub("[-_.]+", "-", requirement.name).lower())
                if found is None or not requirement.specifier.contains(found["Version"], prereleases=True):
                    missing.append(f"{name} needs {requirement}, there is {found and found['Version']}")
    assert not missing


def test_the_drivers_libraries_come_from_the_node(images: dict[str, Image]) -> None:
    for name in (*SERVERS, "client_example"):
        assert not [p for p in images[name].tree if p.rsplit("/", 1)[-1] in FROM_THE_NODE or "gpu-mock" in p]
        assert not [p for p in images[name].tree if "timeslice_gpu_mock" in p]
    for library in FROM_THE_NODE:
        assert f"usr/lib/timeslice-gpu-mock/{library}" in images["gpu_mock"].contents


@pytest.mark.parametrize(
    ("name", "distributions"),
    [
        ("client_example", {"timeslice_orchestrator", "timeslice_rl"}),
        ("orchestrator", {"timeslice_orchestrator", "timeslice_rl"}),
        ("snapshot_agent", {"timeslice_rl", "timeslice_snapshot_agent"}),
    ],
)
def test_our_code_is_that_of_the_wheels(images: dict[str, Image], name: str, distributions: set[str]) -> None:
    """The generated code of the wire contract among it: an image and a client's wheel cannot differ."""
    contents = images[name].layers[-1].contents
    found = set()
    for wheel in WHEELS:
        if (distribution := wheel.name.split("-")[0]) in distributions:
            found.add(distribution)
            with ZipFile(wheel) as archive:
                for path in archive.namelist():
                    if not path.endswith(("/RECORD", ".pyi")):
                        assert contents[f"{SITE}/{path}"] == archive.read(path), path
    assert found == distributions
    assert any(path.endswith("orchestrator_pb2.py") for path in contents)


def test_a_change_of_our_code_pushes_little(images: dict[str, Image]) -> None:
    beneath = {layer.digest for image in images.values() for layer in image.layers[:1]}
    assert len(beneath) == 1, "the layer of Debian packages is not shared"
    for image in images.values():
        assert image.layers[-1].packed_size < MAX_CODE
        assert not [p for layer in image.layers[:-1] for p in layer.contents if "/timeslice" in p and SITE in p]


def test_size(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    size, most = image.archive.stat().st_size, MAX_SIZE[image.name]
    with capsys.disabled():  # so that a log tells
        print(f"\n{image.name}: {size / MB:.1f} MB of at most {most / MB:.0f} MB")
    assert size <= most


def test_time_zones_certificates_and_names(image: Image) -> None:
    assert image.follow("usr/share/zoneinfo/Europe/Berlin")
    assert image.contents["etc/ssl/certs/ca-certificates.crt"].count(b"BEGIN CERTIFICATE") > 100
    assert image.follow("usr/lib/ssl/cert.pem") == "etc/ssl/certs/ca-certificates.crt"
    assert b"hosts: files dns" in image.contents["etc/nsswitch.conf"]
    assert b"VERSION_CODENAME=bookworm" in image.contents["usr/lib/os-release"]
