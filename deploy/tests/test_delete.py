"""What :delete asks of the cluster, in which order, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from timeslice_deploy.delete import delete
from timeslice_deploy.errors import DeployError
from timeslice_deploy.kubectl import Answer, Kubectl

OBJECTS = [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "timesliceorchestrator"}}]


def group(name: str, **status: Any) -> Any:
    return {"metadata": {"name": name, "finalizers": ["timeslice.io/lease"]}, "status": status}


class Cluster(Kubectl):
    """A cluster with groups. As the real one it makes a group anew while the orchestrator runs, and keeps one that has
    a finalizer."""

    def __init__(self, *groups: Any) -> None:
        super().__init__("kubectl", "prod")
        self.groups = {one["metadata"]["name"]: one for one in groups}
        self.orchestrator_runs = True
        self.at_the_end: Any = None
        """A group as it is when the orchestrator has ended."""
        self.deleted: list[str] = []

    async def call(self, *arguments: str, stdin: str | None = None, wait_s: float = 0.0) -> Answer:
        verb, what = arguments[:2]
        given = [one.removesuffix("s") for one in (a.partition("--timeout=")[2] for a in arguments) if one]
        assert all(float(limit) <= wait_s for limit in given), f"{arguments} is killed before its own time is over"
        match verb, what:
            case "version", _:
                return Answer(0, json.dumps({"serverVersion": {"gitVersion": "v1.37.0"}}), "")
            case "get", "timeslicegroups.timeslice.io":
                return Answer(0, json.dumps({"items": list(self.groups.values())}), "")
            case "get", _:
                return Answer(0, json.dumps({"items": []}), "")
            case "delete", "timeslicegroups.timeslice.io":
                assert not self.orchestrator_runs, "it makes the group anew"
                return Answer(0, "", "")
            case "patch", "timeslicegroups.timeslice.io":
                assert not self.orchestrator_runs, "it puts its finalizer there again"
                assert json.loads(arguments[-1]) == {"metadata": {"finalizers": None}}
                del self.groups[arguments[2]]
            case "delete", _:
                self.deleted.append(what)
                if stdin is not None:
                    self.orchestrator_runs = False
                    if self.at_the_end is not None:
                        self.groups[self.at_the_end["metadata"]["name"]] = self.at_the_end
            case "wait", "--for=delete":
                assert not self.orchestrator_runs
            case _:
                raise AssertionError(f"not expected: {arguments}")
        return Answer(0, "", "")


async def run(cluster: Cluster, *, with_groups: bool = False, force: bool = False) -> list[str]:
    said: list[str] = []
    await delete(cluster, OBJECTS, with_groups=with_groups, force=force, timeout_s=300.0, say=said.append)
    return said


HELD = group("trainers", lease={"job": "a"}, queueLength=2)


async def test_groups_stay() -> None:
    cluster = Cluster(group("trainers"), group("samplers"))
    said = await run(cluster)
    assert any("kept: 2 TimeSliceGroups" in line for line in said)
    assert sorted(cluster.groups) == ["samplers", "trainers"]
    assert "customresourcedefinition" not in cluster.deleted


async def test_groups_go_when_the_orchestrator_is_gone() -> None:
    cluster = Cluster(group("trainers"), group("samplers"))
    await run(cluster, with_groups=True)
    assert cluster.groups == {}
    assert cluster.deleted[-2:] == ["customresourcedefinition", "namespace"]


@pytest.mark.parametrize("with_groups", [False, True])
async def test_nothing_goes_under_a_holder(with_groups: bool) -> None:
    cluster = Cluster(HELD)
    with pytest.raises(DeployError, match="group trainers: held by a, 2 waiting"):
        await run(cluster, with_groups=with_groups)
    assert cluster.orchestrator_runs
    await run(cluster, with_groups=with_groups, force=True)
    assert not cluster.orchestrator_runs


async def test_lease_that_came_in_meanwhile_keeps_the_groups() -> None:
    cluster = Cluster(group("trainers"))
    cluster.at_the_end = HELD
    with pytest.raises(DeployError, match="held by a"):
        await run(cluster, with_groups=True)
    assert list(cluster.groups) == ["trainers"]
