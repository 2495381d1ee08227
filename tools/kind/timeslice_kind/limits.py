"""What the machine must have room for before a cluster is made."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from timeslice_kind.errors import KindError

PER_NODE = 20
"""inotify instances: kubelet, containerd and the control plane's programs hold 15, a kubelet that restarts more."""

LIMIT = "fs.inotify.max_user_instances"


def check_inotify(nodes: int, proc: Path = Path("/proc")) -> None:
    """Raises: KindError if this user's inotify instances would run out: kubelets would fail to start, much later."""
    limit = int((proc / "sys" / LIMIT.replace(".", "/")).read_text())
    used = _instances(proc)
    needed = used + nodes * PER_NODE
    if needed > limit:
        raise KindError(
            f"{used} of {limit} inotify instances are in use, and a cluster of {nodes} nodes needs up to"
            f" {nodes * PER_NODE} more; delete other clusters, or say `sysctl -w {LIMIT}={max(512, 2 * needed)}`"
        )


def _instances(proc: Path) -> int:
    """Of this user's processes, those in containers among them."""
    found = 0
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid != os.geteuid():
                continue
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    found += os.readlink(descriptor) == "anon_inode:inotify"
    return found
