"""What objects of the API server say, in our own types. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import AcceleratorId, GroupId, JobId, PodUid
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.samples import DeviceSample
from snapshot_agent_server.kubernetes.api import Json

JOB_LABEL = "timeslice.io/job-id"
GROUP_LABEL = "timeslice.io/group"
MIRROR = "kubernetes.io/config.mirror"
"""On the API server's copy of a static pod: the uid that its cgroups have."""
ENDED = ("Succeeded", "Failed")


def pods(objects: Iterable[Json]) -> tuple[tuple[Pod, ...], frozenset[PodUid]]:
    """Those that name a job, and the uids of the others. Those whose containers have all ended are left out."""
    of_jobs: list[Pod] = []
    others: set[PodUid] = set()
    for found in objects:
        metadata, status = found["metadata"], found.get("status") or {}
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        uid = PodUid(annotations.get(MIRROR) or metadata["uid"])
        if status.get("phase") in ENDED:
            continue
        if not labels.get(JOB_LABEL):
            others.add(uid)
            continue
        of_jobs.append(
            Pod(
                uid=uid,
                name=f"{metadata.get('namespace', '')}/{metadata['name']}",
                job=JobId(labels[JOB_LABEL]),
                group=GroupId(labels[GROUP_LABEL]) if labels.get(GROUP_LABEL) else None,
                containers=frozenset(_containers(status)),
            )
        )
    return tuple(sorted(of_jobs, key=lambda pod: pod.uid)), frozenset(others)


def claims(objects: Iterable[Json], node: str, devices: Sequence[DeviceSample]) -> tuple[GroupClaim, ...]:
    """What TimeSliceGroups say of this node, the oldest first."""
    names = {str(device.index): device.accelerator for device in devices}
    names.update({device.accelerator: device.accelerator for device in devices})
    by_group: dict[GroupId, GroupClaim] = {}
    for found in sorted(objects, key=_age):
        spec = found.get("spec") or {}
        group = GroupId(spec.get("group") or found["metadata"]["name"])
        for here in spec.get("nodes") or ():
            if here.get("name") == node and group not in by_group:
                by_group[group] = _claim(group, here.get("accelerators") or (), names, devices)
    return tuple(by_group.values())


def _claim(
    group: GroupId, wanted: Iterable[str], names: Mapping[str, AcceleratorId], devices: Sequence[DeviceSample]
) -> GroupClaim:
    wanted = [str(name) for name in wanted]
    if not wanted:
        return GroupClaim(group, tuple(device.accelerator for device in devices))
    known = dict.fromkeys(names[name] for name in wanted if name in names)
    return GroupClaim(group, tuple(known), tuple(name for name in wanted if name not in names))


def _age(found: Json) -> tuple[str, str]:
    metadata = found["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["name"])


def _containers(status: Json) -> list[str]:
    """Ids without the runtime's name in front: "containerd://ID", "cri-o://ID", "docker://ID"."""
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    ids = [str(one.get("containerID") or "") for kind in kinds for one in status.get(kind) or ()]
    return [found.rpartition("://")[2] for found in ids if found]
