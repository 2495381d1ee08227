"""What `kind create cluster` is told, as data."""

from __future__ import annotations

import json
from typing import Any

from timeslice_kind.node_image import NodeImage

API = "kind.x-k8s.io/v1alpha4"


def cluster_config(name: str, workers: int, image: NodeImage | None) -> dict[str, Any]:
    """One control plane and `workers` nodes; with our node image, or with kind's own (None).

    Our image differs from kind's in what it has for the network (containerd's own plugins, nft) and for processes
    (no systemd), and all that it runs is named localhost/...
    """
    roles = ["control-plane"] + ["worker"] * workers
    config: dict[str, Any] = {"kind": "Cluster", "apiVersion": API, "name": name}
    if image is None:
        return config | {"nodes": [{"role": role} for role in roles]}
    return config | {
        "nodes": [{"role": role, "image": image.ref} for role in roles],
        "networking": {"disableDefaultCNI": True, "kubeProxyMode": "nftables"},
        "kubeadmConfigPatches": [json.dumps(patch) for patch in kubeadm_patches(image)],
    }


def kubeadm_patches(image: NodeImage) -> list[dict[str, Any]]:
    """Where control-plane images are, and a kubelet that lives without systemd and on cgroup v1."""
    return [
        {
            "kind": "ClusterConfiguration",
            "imageRepository": "localhost",
            "dns": {"imageTag": image.versions.coredns},
            "etcd": {
                "local": {
                    "imageTag": image.versions.etcd,
                    # A cluster that is thrown away need not survive a power cut.
                    "extraArgs": [{"name": "unsafe-no-fsync", "value": "true"}],
                }
            },
        },
        {
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": "/",
            "failCgroupV1": False,
            "resolvConf": "/kind/resolv.conf",
        },
    ]
