"""A kind node image put together from our own programs and Debian packages; no registry is asked.

It is kept in a podman store of its own, which labs use as an additional, read-only one.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from timeslice_kind.cache import Cache, content_key, remove_tree
from timeslice_kind.debian import BUILDING, RUNNING, need
from timeslice_kind.errors import KindError
from timeslice_kind.golang import build_part, part_key
from timeslice_kind.image_archive import PATH, Image, write_archive
from timeslice_kind.modules import BY_NAME, PARTS, part_version
from timeslice_kind.processes import run
from timeslice_kind.progress import step

PACKAGES = (
    "ca-certificates", "conntrack", "containernetworking-plugins", "iproute2", "iptables", "mount", "nftables",
    "procps", "runc",
)  # fmt: skip
"""What a node has of Debian, besides the essential packages."""

UNWANTED = ("doc", "locale", "man")
"""Folders of /usr/share that stay out."""

ON_NODE = {
    "kubernetes": ("kubeadm", "kubectl", "kubelet"),
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "crictl": ("crictl",),
}
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")

PAUSE = "localhost/pause:3.10.2"
"""As node/containerd.toml names it."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""uname's names, and those of images."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Image tags that kubeadm must be told or takes from its own version."""

    kubernetes: str
    etcd: str
    coredns: str


@dataclass(frozen=True, slots=True)
class NodeImage:
    """A node image in a store of its own."""

    ref: str
    store: Path
    versions: Versions


def versions(sources: Path) -> Versions:
    """As the go.mod files pin them; etcd's tag without its v, as kubeadm has it."""
    kubernetes, etcd, coredns = (part_version(sources, BY_NAME[name]) for name in ("kubernetes", "etcd", "coredns"))
    return Versions(kubernetes, etcd.removeprefix("v"), coredns)


MIRROR_FORMAT = "$(ORIGIN) $(IDENTIFIER) deb $(REPO_URI) $(RELEASE) $(COMPONENT)"


def codename(os_release: str) -> str:
    """Of the machine's Debian, which the node's tree is taken from."""
    for line in os_release.splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip().strip('"')
    raise KindError("/etc/os-release has no VERSION_CODENAME: the node image is made from Debian's packages")


def debian_mirrors(targets: str, suite: str) -> list[str]:
    """Lines of a sources.list with what the machine's apt has of this Debian, in whatever files that stands.

    Args:
        targets: what `apt-get indextargets --format MIRROR_FORMAT` prints.
        suite: such as "bookworm"; its updates and security come along.
    """
    found = dict.fromkeys(
        line.removeprefix("Debian Packages ")
        for line in targets.splitlines()
        if line.startswith("Debian Packages ") and line.split()[4].partition("-")[0] == suite
    )
    return list(found)


def debian_tree(cache: Cache, env: Mapping[str, str]) -> Path:
    """base.tar: a small Debian with runc, the CNI plugins and the usual tools. Needs the network, once."""
    try:
        suite = codename(Path("/etc/os-release").read_text())
    except FileNotFoundError:
        raise KindError("no /etc/os-release: the node image is made from the machine's own Debian") from None

    def make(folder: Path) -> None:
        need(BUILDING, env)
        mirrors = debian_mirrors(run(["apt-get", "indextargets", "--format", MIRROR_FORMAT], env=dict(env)), suite)
        if not mirrors:
            raise KindError(f"apt knows no mirror of Debian {suite}: its package lists are missing (apt-get update)")
        with step(f"taking Debian {suite} and {len(PACKAGES)} packages"):
            run(
                [
                    "mmdebstrap", "--variant=minbase", "--include=" + ",".join(PACKAGES),
                    '--aptopt=APT::Install-Recommends "false"',
                    *[f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNWANTED],
                    suite, str(folder / "base.tar"), *mirrors,
                ],
                env=dict(env),
            )  # fmt: skip

    return cache.get("debian", content_key(suite, *PACKAGES, *UNWANTED), make) / "base.tar"


def shared_objects(root: Path, program: str) -> dict[str, Path]:
    """A program of the tree with the libraries that it starts with: place there, file here."""
    names = {program}
    for line in run(["chroot", str(root), "ldd", program]).splitlines():
        words = line.split()
        names.update(word for word in (words[2:3] if "=>" in words else words[:1]) if word.startswith("/"))
    merged = {name if name.startswith("/usr/") else "/usr" + name for name in names}
    return {name: (root / name[1:]).resolve() for name in sorted(merged)}


def control_plane_images(bins: Mapping[str, Path], told: Versions) -> list[Image]:
    """What the control-plane node runs as static pods; one static program each."""
    kubernetes = [
        Image(f"localhost/{name}:{told.kubernetes}", {f"/usr/local/bin/{name}": bins["kubernetes"] / name})
        for name in CONTROL_PLANE
    ]
    return [*kubernetes, Image(f"localhost/etcd:{told.etcd}", {"/usr/local/bin/etcd": bins["etcd"] / "etcd"})]


def node_images(bins: Mapping[str, Path], told: Versions, root: Path, pause: Path) -> list[Image]:
    """What every node runs."""
    proxy = {"/usr/local/bin/kube-proxy": bins["kubernetes"] / "kube-proxy"}
    usr = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
    return [
        Image(PAUSE, {"/pause": pause}, ["/pause"]),
        Image(
            f"localhost/kube-proxy:{told.kubernetes}", proxy | shared_objects(root, "/usr/sbin/nft"), links=usr
        ),
        Image(f"localhost/coredns:{told.coredns}", {"/coredns": bins["coredns"] / "coredns"}, ["/coredns"]),
    ]


def build_node_image(cache: Cache, sources: Path, node: Path, pause: Path, env: Mapping[str, str]) -> NodeImage:
    """The image, made now unless that was done before.

    Args:
        cache: where everything is kept.
        sources: the folder with the go.mod folders.
        node: the folder with what goes into the image as it is.
        pause: the program that holds a pod's namespaces, static.
        env: environment for Go and apt.
    """
    told = versions(sources)
    key = content_key(
        *(part_key(sources, part) for part in PARTS),
        *PACKAGES, *UNWANTED, codename(Path("/etc/os-release").read_text()), node, pause, Path(__file__),
    )  # fmt: skip
    ref = f"localhost/timeslice-kind-node:{told.kubernetes}-{key}"

    def make(folder: Path) -> None:
        # First the short part that needs the network and apt: what is missing shows in the first minute.
        need(BUILDING | RUNNING, env)
        tree = debian_tree(cache, env)
        bins = {part.name: build_part(cache, sources, part, env) for part in PARTS}
        with step(f"putting the node image together ({ref})"):
            work = folder / "work"
            root = work / "root"
            root.mkdir(parents=True)
            run(["tar", "-C", str(root), "--exclude=./dev/*", "-xf", str(tree)])
            architecture = ARCHITECTURES[platform.machine()]
            write_archive(work / "control-plane.tar", control_plane_images(bins, told), architecture)
            write_archive(work / "node-all.tar", node_images(bins, told, root, pause), architecture)
            files = {f"usr/local/bin/{name}": bins[part] / name for part, names in ON_NODE.items() for name in names}
            files |= {
                "kind/init": node / "init",
                "usr/local/bin/systemctl": node / "systemctl",
                "usr/local/bin/journalctl": node / "journalctl",
                "kind/cni.tmpl": node / "cni.tmpl",
                "etc/containerd/config.toml": node / "containerd.toml",
                "kind/manifests/default-storage.yaml": node / "storage.yaml",
                "kind/images/control-plane.tar": work / "control-plane.tar",
                "kind/images/node-all.tar": work / "node-all.tar",
            }
            texts = {
                "kind/version": told.kubernetes + "\n",
                "etc/crictl.yaml": "runtime-endpoint: unix:///run/containerd/containerd.sock\n",
            }
            import_into_store(folder, ref, tree, files, texts)
            remove_tree(work)

    entry = cache.get("node-image", key, make)
    return NodeImage(ref, entry / "store", told)


def import_into_store(
    folder: Path, ref: str, tree: Path, files: Mapping[str, Path], texts: Mapping[str, str]
) -> None:
    """Stream the image into a new podman store below `folder`."""
    podman = [
        # podman mounts its store on itself; that goes with this mount namespace.
        "unshare", "--mount", "--propagation", "private",
        "podman", "--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "overlay",
        "import", "--quiet",
        "--change", 'ENTRYPOINT ["/kind/init"]', "--change", f"ENV PATH={PATH}", "--change", "STOPSIGNAL SIGTERM",
        "-", ref,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(podman, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as importing:
        assert importing.stdin is not None
        assert importing.stdout is not None
        try:
            with tarfile.open(fileobj=importing.stdin, mode="w|") as out:
                write_root(out, tree, files, texts)
            importing.stdin.close()
        except BrokenPipeError:
            pass  # what podman says is better
        said = importing.stdout.read()
    if importing.returncode:
        raise KindError(f"podman import failed:\n{said.decode()}")
    remove_tree(folder / "run")


def write_root(out: tarfile.TarFile, tree: Path, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """A node's root: the Debian tree without its /dev, folders that programs expect, and our files."""
    with tarfile.open(tree) as source:
        for member in source:
            if not member.name.startswith("./dev/"):
                out.addfile(member, source.extractfile(member) if member.isreg() else None)
    for name in ("./usr/lib/modules", "./etc/cni/net.d", "./etc/kubernetes/manifests"):
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        out.addfile(folder)
    for name, text in texts.items():
        info = tarfile.TarInfo("./" + name)
        info.mode, info.size = 0o644, len(text.encode())
        out.addfile(info, io.BytesIO(text.encode()))
    for name, path in files.items():
        info = tarfile.TarInfo("./" + name)
        info.mode, info.size = 0o755 if os.access(path, os.X_OK) else 0o644, path.stat().st_size
        with path.open("rb") as data:
            out.addfile(info, data)
