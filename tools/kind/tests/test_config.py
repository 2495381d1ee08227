"""What kind and podman are told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from timeslice_kind.config import cluster_config
from timeslice_kind.errors import KindError
from timeslice_kind.lab import Lab, podman_settings, write_programs
from timeslice_kind.node_image import PAUSE, NodeImage, Versions, codename, debian_mirrors, versions

IMAGE = NodeImage("localhost/node:v1", Path("/cache/node-image-1/store"), Versions("v1.37.2", "3.6.16", "v1.14.6"))


def test_docker_gets_kinds_own_image_and_defaults() -> None:
    assert cluster_config("dev", 2, None) == {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": "dev",
        "nodes": [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}],
    }


def test_podman_gets_our_image_on_each_node_and_what_it_lacks_is_turned_off() -> None:
    config = cluster_config("dev", 1, IMAGE)
    assert config["nodes"] == [{"role": role, "image": IMAGE.ref} for role in ("control-plane", "worker")]
    assert config["networking"] == {"disableDefaultCNI": True, "kubeProxyMode": "nftables"}
    patches = {patch["kind"]: patch for patch in map(json.loads, config["kubeadmConfigPatches"])}
    assert patches["ClusterConfiguration"]["imageRepository"] == "localhost"
    assert patches["ClusterConfiguration"]["etcd"]["local"]["imageTag"] == "3.6.16"
    assert patches["ClusterConfiguration"]["dns"] == {"imageTag": "v1.14.6"}
    assert patches["KubeletConfiguration"] == {
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "failCgroupV1": False,
        "resolvConf": "/kind/resolv.conf",
    }


def test_versions_come_from_the_go_modules() -> None:
    told = versions(Path("tools/kind/go"))
    assert told.kubernetes.startswith("v1.")
    assert not told.etcd.startswith("v"), "kubeadm's tag of etcd has no v"
    assert told.coredns.startswith("v")


def test_containerd_is_told_the_pause_image_that_nodes_have() -> None:
    assert f"sandbox = '{PAUSE}'" in Path("tools/kind/node/containerd.toml").read_text()


def test_podman_writes_into_the_labs_folder_alone_and_pulls_nothing() -> None:
    settings = podman_settings(Path("/labs/dev"), IMAGE.store, 1024)
    assert 'pull_policy = "never"' in settings["containers.conf"]
    assert f'additionalimagestores = ["{IMAGE.store}"]' in settings["storage.conf"]
    places = [line.split(" = ")[1] for text in settings.values() for line in text.splitlines() if '= "/' in line]
    assert len(places) == 5
    assert all(place.startswith('"/labs/dev/') for place in places)


def test_commands_inside_find_our_programs_first() -> None:
    env = Lab(Path("/labs/dev")).env({"PATH": "/usr/bin", "HOME": "/root"})
    assert env["PATH"].split(":")[:2] == ["/labs/dev/bin", "/usr/bin"]
    assert (env["KUBECONFIG"], env["HOME"]) == ("/labs/dev/kubeconfig", "/root")


def test_mirrors_are_what_apt_has_of_this_debian() -> None:
    told = """\
Debian Packages deb http://mirror/debian/ bookworm main
Debian DEP-11 deb http://mirror/debian/ bookworm main
Debian Packages deb http://mirror/debian/ bookworm-updates main
Debian Packages deb http://mirror/debian-security/ bookworm-security main
Debian Packages deb http://mirror/debian/ trixie main
Docker Packages deb http://elsewhere/ bookworm stable
"""
    assert debian_mirrors(told, "bookworm") == [
        "deb http://mirror/debian/ bookworm main",
        "deb http://mirror/debian/ bookworm-updates main",
        "deb http://mirror/debian-security/ bookworm-security main",
    ]
    assert debian_mirrors("", "bookworm") == []


def test_codename_of_the_machine() -> None:
    assert codename('NAME="Debian GNU/Linux"\nVERSION_CODENAME=bookworm\n') == "bookworm"
    with pytest.raises(KindError, match="Debian"):
        codename("NAME=Arch\n")


def test_programs_of_a_cluster_find_it_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real kubectl"
    real.write_text('#!/bin/sh\necho "$KUBECONFIG|$PWD|$*|$PATH"\n')
    real.chmod(0o755)
    programs = tmp_path / "a lab" / "bin"
    write_programs(programs, tmp_path / "a lab" / "kubeconfig", {"kubectl": real}, None)
    monkeypatch.chdir(tmp_path)
    said = subprocess.run(
        [programs / "kubectl", "get", "a b"],
        env={"PATH": f"{programs}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == f"{tmp_path}/a lab/kubeconfig|{tmp_path}|get a b|/usr/bin:/bin:/usr/sbin:/sbin\n"


def test_programs_of_a_lab_enter_its_namespaces(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    write_programs(lab.programs, lab.kubeconfig, {"kind": Path("/b/kind"), "kubectl": Path("/b/kubectl")}, lab)
    last = {path.name: path.read_text().splitlines()[-1] for path in lab.programs.iterdir()}
    assert last.keys() == {"kind", "kubectl", "podman"}
    assert all(f"--net={tmp_path}/net" in line for line in last.values())
    assert {name for name, line in last.items() if f"--mount={tmp_path}/mnt" in line} == {"kind", "podman"}
    assert last["kind"].endswith('"$here" /b/kind "$@"')
