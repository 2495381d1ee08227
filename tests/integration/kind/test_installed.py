"""After the commands of docs/kubernetes.md: what runs, and what pods can have."""

from __future__ import annotations

from installation import GROUPS, SYSTEM, Installation


def test_groups_stand_for_the_labels_of_nodes(timeslice: Installation) -> None:
    for group in GROUPS:
        found = timeslice.kube.watch_until(
            # IdleYielded: a test before this one had a job there.
            lambda seen: seen.get("status", {}).get("state") in ("Idle", "IdleYielded"), "timeslicegroups", group
        )
        assert [node["name"] for node in found["spec"]["nodes"]] == [timeslice.nodes[group]]


def test_nodes_offer_mock_gpus_in_both_ways(timeslice: Installation) -> None:
    for node in timeslice.nodes.values():
        offered = timeslice.kube.get("node", node)["status"]["allocatable"]
        assert offered["nvidia.com/gpu"] == "2"
    slices = timeslice.kube.get("resourceslices")["items"]
    devices = {(one["spec"]["nodeName"], len(one["spec"]["devices"])) for one in slices}
    assert devices == {(node, 2) for node in timeslice.nodes.values()}


def test_orchestrator_and_agents_run_with_little_rights(timeslice: Installation) -> None:
    pods = timeslice.kube.get("pods", "-n", SYSTEM)["items"]
    ours = [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/part-of") == "timeslice"]
    assert len(ours) >= 3
    for pod in ours:
        for container in pod["spec"]["containers"]:
            context = container["securityContext"]
            assert not context.get("privileged"), pod["metadata"]["name"]
            assert context["readOnlyRootFilesystem"], pod["metadata"]["name"]


def test_applying_again_changes_nothing(timeslice: Installation) -> None:
    timeslice.deploy("diff", "--overlay", "mock-gpu")
    timeslice.deploy("status")
