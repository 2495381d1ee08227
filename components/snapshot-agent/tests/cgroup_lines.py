"""Lines of /proc/PID/cgroup as kernels, kubelets and runtimes write them, and what they say. The ids are made up."""

# ruff: noqa: E501 -- a path is read in one piece

from __future__ import annotations

from typing import NamedTuple

UID = "0f6b1c2e-93d4-4a57-8b21-5e7c90d1a3f8"
UNDERLINED = UID.replace("-", "_")
ID = "4c5e1f7a9b3d" + "08e2" * 13
NODE_UID = "b7a0d3c4-5e6f-4102-9384-a5b6c7d8e9f0"
NODE_ID = "91ab3c" + "7d" * 29
STATIC = "8d3f0a6b5c4e7f1920a3b4c5d6e7f809"
V1 = [
    "hugetlb",
    "perf_event",
    "net_cls,net_prio",
    "freezer",
    "devices",
    "pids",
    "cpu,cpuacct",
    "blkio",
    "memory",
    "cpuset",
]


class Row(NamedTuple):
    name: str
    lines: list[str]
    places: list[tuple[str, str]]
    """(pod, container), in the order in which they count."""


def v1(path: str, *more: str) -> list[str]:
    """The same path in every controller, as kubelet and runtime make them."""
    return [f"{len(V1) - number + 1}:{controller}:{path}" for number, controller in enumerate(V1)] + list(more)


def v2(path: str) -> list[str]:
    return [f"0::{path}"]


SLICES = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + UNDERLINED + ".slice"
GUARANTEED = f"/kubepods.slice/kubepods-pod{UNDERLINED}.slice"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod"
HERE = [(UID, ID)]

ROWS = [
    # version 1
    Row("v1 cgroupfs containerd, besteffort", v1(f"/kubepods/besteffort/pod{UID}/{ID}"), HERE),
    Row("v1 cgroupfs containerd, burstable", v1(f"/kubepods/burstable/pod{UID}/{ID}"), HERE),
    Row("v1 cgroupfs containerd, guaranteed", v1(f"/kubepods/pod{UID}/{ID}"), HERE),
    Row("v1 cgroupfs docker", v1(f"/kubepods/burstable/pod{UID}/{ID}", f"1:name=systemd:/kubepods/burstable/pod{UID}/{ID}"), HERE),
    Row("v1 cgroupfs CRI-O", v1(f"/kubepods/burstable/pod{UID}/crio-{ID}"), HERE),
    Row("v1 systemd containerd", v1(f"{SLICES}/cri-containerd-{ID}.scope", f"1:name=systemd:{SLICES}/cri-containerd-{ID}.scope"), HERE),
    Row("v1 systemd docker", v1(f"{SLICES}/docker-{ID}.scope"), HERE),
    Row("v1 systemd CRI-O", v1(f"{SLICES}/crio-{ID}.scope"), HERE),
    Row("v1 with controllers that nobody uses", ["12:rdma:/", "11:misc:/", *v1(f"/kubepods/pod{UID}/{ID}"), "0::/"], HERE),
    Row("v1 of a process that made cgroups of its own", v1(f"/kubepods/pod{UID}/{ID}/user.slice/session-1.scope"), HERE),
    # hybrid
    Row("hybrid cgroupfs", v1(f"/kubepods/besteffort/pod{UID}/{ID}", f"1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}", "0::/"), HERE),
    Row("hybrid systemd", v1(f"{SLICES}/cri-containerd-{ID}.scope", f"0::{SLICES}/cri-containerd-{ID}.scope"), HERE),
    Row("hybrid, version 2 of the runtime's own service", v1(f"/kubepods/pod{UID}/{ID}", "0::/system.slice/containerd.service"), HERE),
    # version 2
    Row("v2 cgroupfs containerd, besteffort", v2(f"/kubepods/besteffort/pod{UID}/{ID}"), HERE),
    Row("v2 cgroupfs containerd, guaranteed", v2(f"/kubepods/pod{UID}/{ID}"), HERE),
    Row("v2 cgroupfs CRI-O", v2(f"/kubepods/besteffort/pod{UID}/crio-{ID}"), HERE),
    Row("v2 systemd containerd, burstable", v2(f"{SLICES}/cri-containerd-{ID}.scope"), HERE),
    Row("v2 systemd containerd, guaranteed", v2(f"{GUARANTEED}/cri-containerd-{ID}.scope"), HERE),
    Row("v2 systemd CRI-O with runc", v2(f"{SLICES}/crio-{ID}.scope"), HERE),
    Row("v2 systemd CRI-O with crun", v2(f"{SLICES}/crio-{ID}.scope/container"), HERE),
    Row("v2 systemd docker through cri-dockerd", v2(f"{GUARANTEED}/docker-{ID}.scope"), HERE),
    Row("v2 systemd podman", v2(f"{SLICES}/libpod-{ID}.scope/container"), HERE),
    Row("v2, systemd as the container's first process", v2(f"{SLICES}/cri-containerd-{ID}.scope/init.scope"), HERE),
    Row("v2, a tree of timeslice run", v2(f"{SLICES}/cri-containerd-{ID}.scope/timeslice-4f2a"), HERE),
    Row("v2, a static pod", v2(f"/kubepods/burstable/pod{STATIC}/{ID}"), [(STATIC, ID)]),
    Row("v2 systemd, a static pod", v2(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{ID}.scope"), [(STATIC, ID)]),
    # the kubelet's driver and the runtime's are not the same
    Row("mixed, in the runtime's service", v2(f"/system.slice/containerd.service/kubepods-burstable-pod{UNDERLINED}.slice:cri-containerd:{ID}"), HERE),
    Row("mixed, at the top, v1", v1(f"/kubepods-besteffort-pod{UNDERLINED}.slice:cri-containerd:{ID}"), HERE),
    Row("mixed, CRI-O", v2(f"/kubepods-pod{UNDERLINED}.slice:crio:{ID}"), HERE),
    # from a cgroup namespace of the agent's own
    Row("namespace, other pod of the same class, systemd", v2(f"/../../kubepods-burstable-pod{UNDERLINED}.slice/cri-containerd-{ID}.scope"), HERE),
    Row("namespace, other class, systemd", v2(f"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERLINED}.slice/crio-{ID}.scope"), HERE),
    Row("namespace, guaranteed, cgroupfs", v2(f"/../../../pod{UID}/{ID}"), HERE),
    Row("namespace, v1", v1(f"/../../../burstable/pod{UID}/{ID}"), HERE),
    Row("namespace, another container of the agent's own pod", v2(f"/../cri-containerd-{ID}.scope"), [("", ID)]),
    Row("namespace, the agent itself", v2("/"), []),
    Row("namespace, a process of the node", v2("/../../../../system.slice/sshd.service"), []),
    # a node that is a container
    Row("kind on docker, v1 cgroupfs", v1(f"/docker/{NODE_ID}/kubepods/besteffort/pod{UID}/{ID}"), [(UID, ID), ("", NODE_ID)]),
    Row("kind on docker, v1, kubelet's own root", v1(f"/docker/{NODE_ID}/kubelet/kubepods/burstable/pod{UID}/{ID}"), [(UID, ID), ("", NODE_ID)]),
    Row("kind on docker, v2 systemd", v2(f"/system.slice/docker-{NODE_ID}.scope{KIND}{UNDERLINED}.slice/cri-containerd-{ID}.scope"), [(UID, ID), ("", NODE_ID)]),
    Row("kind on docker, v2, from inside the node", v2(f"{KIND}{UNDERLINED}.slice/cri-containerd-{ID}.scope"), HERE),
    Row("kind on podman, v2", v2(f"/machine.slice/libpod-{NODE_ID}.scope/container{KIND}{UNDERLINED}.slice/cri-containerd-{ID}.scope"), [(UID, ID), ("", NODE_ID)]),
    Row("kind on rootless podman", v2(f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{NODE_ID}.scope/container{KIND}{UNDERLINED}.slice/cri-containerd-{ID}.scope"), [(UID, ID), ("", NODE_ID)]),
    Row("kind in a pod", v2(f"/kubepods/burstable/pod{NODE_UID}/{NODE_ID}/docker/{NODE_ID[::-1]}/kubepods/pod{UID}/{ID}"), [(UID, ID), (NODE_UID, NODE_ID), ("", NODE_ID[::-1])]),
    # no pod in the path
    Row("docker without Kubernetes", v2(f"/system.slice/docker-{ID}.scope"), [("", ID)]),
    Row("docker without Kubernetes, v1", v1(f"/docker/{ID}"), [("", ID)]),
    Row("kubelet without cgroups per pod", v2(f"/k8s.io/{ID}"), [("", ID)]),
    # who is not in a container
    Row("CRI-O's monitor", v2(f"{SLICES}/crio-conmon-{ID}.scope"), []),
    Row("CRI-O's monitor, cgroupfs", v1(f"/kubepods/burstable/pod{UID}/crio-conmon-{ID}"), []),
    Row("podman's monitor", v2(f"/machine.slice/libpod-conmon-{ID}.scope"), []),
    Row("containerd's shim", v2("/system.slice/containerd.service"), []),
    Row("the kubelet", v2("/system.slice/kubelet.service"), []),
    Row("a session of a user", v2("/user.slice/user-1000.slice/session-3.scope"), []),
    Row("the first process of the node", v2("/init.scope"), []),
    Row("a kernel thread", [*v1("/"), "0::/"], []),
    Row("a process that has ended", [], []),
    # almost
    Row("a pod's own cgroup", v2(f"/kubepods/burstable/pod{UID}"), [(UID, "")]),
    Row("a folder that is called like a pod", v2(f"/podman/pod-of-peas/{ID[:12]}"), []),
    Row("an id that is too short", v2(f"/kubepods/burstable/podcast/{ID[:63]}"), []),
    Row("a removed cgroup", v2(f"/kubepods/pod{UID}/{ID} (deleted)"), [(UID, "")]),
]  # fmt: skip
