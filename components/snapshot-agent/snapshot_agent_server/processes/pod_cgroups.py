"""Which pod and which container a process is in, by the lines of its /proc/PID/cgroup. Pure.

Kubelet and container runtime put the pod's uid and the container's id into the paths of cgroups, in one of a few forms:

    cgroupfs driver   /kubepods/burstable/podUID/ID                       (CRI-O: crio-ID)
    systemd driver    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope
    mixed up          /system.slice/containerd.service/kubepods-burstable-podU_I_D.slice:cri-containerd:ID
    without pods      /docker/ID, /k8s.io/ID                              (cgroupsPerQOS: false)

Version 1 has a line for each controller, version 2 one line that begins with "0::", hybrid both. Seen from a cgroup
namespace of the agent's own, paths of other pods begin with "/../..", and end as everywhere. The nodes of kind, and
Kubernetes in a pod, put a container around all of it: the innermost is nearest to the process.
Sources: cgroups(7), kubelet's pod_container_manager, the runtimes' cgroup names; tests/processes/cgroup_lines.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_UID = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
"""A UUID, its dashes as underlines where systemd makes slices of them; of static pods a hash of their file."""
_CONTAINER = re.compile(r"^(?:([a-z][a-z-]*)-)?([0-9a-f]{64})(?:\.scope)?$")
_MONITORS = ("crio-conmon", "libpod-conmon")
"""Who looks after a container from the pod's own cgroup, and is not in it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is: a container of a pod, as far as the path tells."""

    pod: str
    """Its uid with dashes, as metadata.uid; of a static pod the 32 digits that the kubelet knows it by. Empty: the path
    names no pod."""
    container: str
    """64 digits, as status.containerStatuses[].containerID has behind its "containerd://". Empty: none is named."""


def places(lines: Iterable[str]) -> tuple[Place, ...]:
    """All that the lines tell, those with a pod first, each kind from the innermost to the outermost, none twice.

    A process of no container has none. The monitors of CRI-O and podman are in no container either.
    """
    found: dict[Place, None] = {}
    for line in lines:
        _, _, path = line.rstrip("\n").split(":", 2)
        found.update(dict.fromkeys(reversed(_in_path(path))))
    return tuple(sorted(found, key=lambda place: not place.pod))


def _in_path(path: str) -> list[Place]:
    """From the outermost to the innermost."""
    found: list[Place] = []
    pod = ""
    for name in re.split("[/:]", path):
        uid = _UID.search(name)
        container = _CONTAINER.match(name)
        if uid is not None:
            pod = uid[1].replace("_", "-")
        elif container is not None:
            if container[1] in _MONITORS:
                return found
            found.append(Place(pod, container[2]))
            pod = ""
    return [*found, Place(pod, "")] if pod else found
