"""What a cluster might leave on the machine, to be compared before and after."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SYSCTLS = (
    "kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
    "net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom",
)  # fmt: skip
"""What kubelets, kube-proxy and podman set."""

FOLDERS = ("/lib/modules", "/etc/cni", "/var/lib/cni", "/var/lib/kubelet", "/run/netns", "/run/containerd")


def machine_state() -> dict[str, list[str]]:
    """By kind of thing. Nothing in it changes by itself on a machine where nobody else makes clusters."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    nft = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=False)
    return {
        "links": sorted(os.listdir("/sys/class/net")),
        "mounts": sorted(mounts),
        "sysctls": [f"{name} = {Path('/proc/sys', name).read_text().strip()}" for name in SYSCTLS],
        "firewall": nft.stdout.splitlines(),
        "folders": [name for name in FOLDERS if os.path.exists(name)],
    }
