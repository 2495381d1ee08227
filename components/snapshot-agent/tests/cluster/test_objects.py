"""What objects of the API server say."""

from __future__ import annotations

from typing import Any

from cgroup_lines import ID, STATIC, UID
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import AcceleratorId, GroupId, JobId, PodUid
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.core.samples import DeviceSample
from snapshot_agent_server.kubernetes.objects import claims, pods

DEVICES = tuple(DeviceSample(AcceleratorId(f"GPU-{n}"), n, "GPU", 1, 0) for n in range(3))


def pod(uid: str = UID, labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"uid": uid, "name": "trainer-0", "namespace": "rl", "labels": labels, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, **more}


def group(name: str, *accelerators: str, node: str = "n", created: str = "", **spec: Any) -> dict[str, Any]:
    nodes = [{"name": "other", "accelerators": []}, {"name": node, "accelerators": list(accelerators)}]
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"nodes": nodes, **spec}}


def test_a_pod_with_its_labels_and_containers() -> None:
    labels = {"timeslice.io/job-id": "a", "timeslice.io/group": "g"}
    status = {
        "phase": "Running",
        "containerStatuses": [{"containerID": f"containerd://{ID}"}, {}],
        "initContainerStatuses": [{"containerID": f"cri-o://{ID[::-1]}"}],
    }
    [found], others = pods([pod(labels=labels, status=status)])
    assert found == Pod(PodUid(UID), "rl/trainer-0", JobId("a"), GroupId("g"), frozenset({ID, ID[::-1]}))
    assert others == frozenset()


def test_pods_of_no_job_are_told_apart_from_those_that_are_not_there() -> None:
    empty = pod("1" * 32, {"timeslice.io/job-id": ""})
    assert pods([pod(labels=None), empty]) == ((), frozenset({UID, "1" * 32}))


def test_a_pod_that_has_ended_is_not_there() -> None:
    assert pods([pod(labels={"timeslice.io/job-id": "a"}, status={"phase": "Succeeded"})]) == ((), frozenset())


def test_a_static_pod_goes_by_the_uid_that_its_cgroups_have() -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": STATIC}}
    [found], _ = pods([pod(labels={"timeslice.io/job-id": "a"}, metadata=mirror)])
    assert found.uid == STATIC


def test_a_group_names_accelerators_by_index_by_uuid_or_not_at_all() -> None:
    found = claims([group("a", "0"), group("b", "GPU-1"), group("c")], "n", DEVICES)
    assert found == (
        GroupClaim(GroupId("a"), (AcceleratorId("GPU-0"),)),
        GroupClaim(GroupId("b"), (AcceleratorId("GPU-1"),)),
        GroupClaim(GroupId("c"), tuple(device.accelerator for device in DEVICES)),
    )


def test_groups_of_other_nodes_are_left_out_and_the_oldest_is_first() -> None:
    found = claims(
        [group("young", created="2026-02-01T00:00:00Z"), group("x", node="m"), group("old", created="2026-01-01")],
        "n",
        DEVICES,
    )
    assert [claim.group for claim in found] == ["old", "young"]


def test_what_the_node_does_not_have_is_kept_for_people() -> None:
    [found] = claims([group("a", "0", "7", "GPU-9")], "n", DEVICES)
    assert found == GroupClaim(GroupId("a"), (AcceleratorId("GPU-0"),), ("7", "GPU-9"))


def test_a_group_whose_id_cannot_be_an_objects_name() -> None:
    [found] = claims([group("some-name", "0", group="Trainers_A")], "n", DEVICES)
    assert found.group == "Trainers_A"


def test_an_object_without_a_spec_says_nothing() -> None:
    assert claims([{"metadata": {"name": "g"}}], "n", DEVICES) == ()
