"""What is built, and in which version, is read from the go.mod files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from timeslice_kind.errors import KindError
from timeslice_kind.golang import go_version, part_key
from timeslice_kind.modules import BY_NAME, PARTS, Part, Target, linker_flags, part_version, targets, version

GO = Path("tools/kind/go")

GO_MOD = """module example.invalid/x

go 1.26

tool (
	k8s.io/kubernetes/cmd/kubeadm
	go.etcd.io/etcd/server/v3
)

require k8s.io/kubernetes v1.37.2

require (
	github.com/coredns/coredns v1.14.6 // indirect
	k8s.io/kubernetes/staging v0.0.1 // indirect
)
"""


def test_versions_are_found_in_both_forms_of_require() -> None:
    assert version(GO_MOD, "k8s.io/kubernetes") == "v1.37.2"
    assert version(GO_MOD, "github.com/coredns/coredns") == "v1.14.6"


def test_module_that_is_not_required_is_an_error() -> None:
    with pytest.raises(KindError, match=r"k8s\.io/kube"):
        version(GO_MOD, "k8s.io/kube")


def test_targets_are_the_tools_by_their_programs_names() -> None:
    part = Part("p", "m", renamed=(("go.etcd.io/etcd/server/v3", "etcd"),))
    assert targets(part, GO_MOD) == [
        Target("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
        Target("etcd", "go.etcd.io/etcd/server/v3"),
    ]
    assert targets(part, "tool sigs.k8s.io/kind\n") == [Target("kind", "sigs.k8s.io/kind")]


def test_folder_without_tools_is_its_own_program() -> None:
    assert targets(Part("coredns", "m"), "module x\n") == [Target("coredns", ".")]


def test_kubernetes_is_told_its_version() -> None:
    flags = linker_flags(BY_NAME["kubernetes"], "v1.37.2")
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in flags
    assert "version.gitMinor=37 " in flags
    assert linker_flags(BY_NAME["etcd"], "v3.6.16") == "-s -w"


def test_all_parts_are_pinned_with_hashes() -> None:
    for part in PARTS:
        told = part_version(GO, part)
        assert f"{part.module} {told} h1:" in (GO / part.name / "go.sum").read_text(), part.name


def test_programs_of_all_parts_are_those_that_an_image_needs() -> None:
    programs = {
        target.program for part in PARTS for target in targets(part, (GO / part.name / "go.mod").read_text())
    }
    assert programs == {
        "containerd", "containerd-shim-runc-v2", "coredns", "crictl", "ctr", "etcd", "kind", "kube-apiserver",
        "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubeadm", "kubectl", "kubelet",
    }  # fmt: skip


def test_toolchain_is_at_least_what_the_modules_ask_for() -> None:
    asked = {tuple(map(int, re.findall(r"^go (\S+)$", path.read_text(), re.MULTILINE)[0].split(".")))
             for path in GO.glob("*/go.mod") if path.parent.name != "toolchain"}  # fmt: skip
    go_sum = (GO / "toolchain/go.sum").read_text()
    pinned = re.search(r"golang\.org/toolchain v0\.0\.1-go(\S+)\.linux-amd64 h1:", go_sum)
    assert pinned
    assert tuple(map(int, pinned[1].split("."))) >= max(asked)


def test_key_of_a_part_changes_with_its_go_sum_alone(tmp_path: Path) -> None:
    for name in ("kind", "etcd"):
        (tmp_path / name).mkdir()
        for file in ("go.mod", "go.sum"):
            (tmp_path / name / file).write_text((GO / name / file).read_text())
    before = {name: part_key(tmp_path, BY_NAME[name]) for name in ("kind", "etcd")}
    with (tmp_path / "kind" / "go.sum").open("a") as file:
        file.write("example.invalid/x v1.0.0 h1:x\n")
    assert part_key(tmp_path, BY_NAME["kind"]) != before["kind"]
    assert part_key(tmp_path, BY_NAME["etcd"]) == before["etcd"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("go version go1.19.8 linux/amd64", (1, 19)), ("go version go1.26-devel_abc linux/arm64", (1, 26))],
)
def test_version_of_go_is_understood(text: str, expected: tuple[int, int]) -> None:
    assert go_version(text) == expected


def test_odd_version_of_go_is_named() -> None:
    with pytest.raises(KindError, match="gccgo"):
        go_version("gccgo whatever")
