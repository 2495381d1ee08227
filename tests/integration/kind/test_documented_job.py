"""The first job of docs/kubernetes.md, word for word but for its image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from installation import Installation
from job_pod import IMAGE, in_namespace
from kube import Kube, Object

NAMESPACE = "documented"
GROUP = "trainers"


@pytest.fixture
def kube(timeslice: Installation) -> Iterator[Kube]:
    with in_namespace(timeslice.kube, NAMESPACE) as kube:
        yield kube


def blocks(language: str) -> list[str]:
    """What the page has in this language."""
    page = Path("docs/kubernetes.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def documented(kind: str) -> Object:
    [found] = [one for one in map(yaml.safe_load, blocks("yaml")) if one["kind"] == kind]
    return dict(found)


def test_first_job_holds_its_group_and_ends(kube: Kube) -> None:
    [program] = blocks("python")
    pod = documented("Pod")
    [container] = pod["spec"]["containers"]
    assert container["image"] == "YOUR_IMAGE"
    container["image"] = IMAGE
    # What train.py does with the GPU: it is there, and the group is ours.
    inside = """from cuda.bindings import driver
    assert driver.cuInit(0)[0] == 0
    status = client.get_status()
    assert status.group.active_job == "my-run", status"""
    assert "...  # this phase has the GPU" in program
    container["command"] = ["python3", "-c", program.replace("...  # this phase has the GPU", inside)]
    for one in (documented("ResourceClaim"), pod):
        one["metadata"]["namespace"] = NAMESPACE
        kube.apply(one)
    name = pod["metadata"]["name"]
    ended = kube.watch_until(
        lambda seen: seen["status"].get("phase") in ("Succeeded", "Failed"), "pod", name, "-n", NAMESPACE
    )
    assert ended["status"]["phase"] == "Succeeded", kube.call("logs", name, "-n", NAMESPACE)


def test_accelerators_and_policy_of_a_group_are_the_platforms_to_state(timeslice: Installation) -> None:
    kube = timeslice.kube
    page = Path("docs/kubernetes.md").read_text()
    heredoc = r"^    (kubectl apply .*) -f - <<'EOF'\n(.*?)^    EOF$"
    [(command, text)] = re.findall(heredoc, page, re.MULTILINE | re.DOTALL)
    group = yaml.safe_load("\n".join(line.removeprefix("    ") for line in text.splitlines()))
    assert group["metadata"]["name"] == GROUP
    [node] = group["spec"]["nodes"]
    node["name"] = timeslice.nodes[GROUP]
    arguments = [*command.split()[1:], "-f", "-"]
    try:
        kube.call(*arguments, stdin=yaml.safe_dump(group))
        # The orchestrator states the group's nodes again when a label changes, and leaves the rest alone.
        kube.call("label", "node", node["name"], "timeslice.io/told=1")
        found = kube.get("timeslicegroup", GROUP)["spec"]
        assert found["nodes"] == [node]
        assert found["onUnsaveable"] == group["spec"]["onUnsaveable"]
    finally:
        kube.call("label", "node", node["name"], "timeslice.io/told-")
        nothing = {**group, "spec": {}}
        kube.call(*arguments, stdin=yaml.safe_dump(nothing))
    kube.watch_until(
        lambda seen: seen["spec"]["nodes"] == [{"name": node["name"]}] and "onUnsaveable" not in seen["spec"],
        "timeslicegroup", GROUP,
    )  # fmt: skip
