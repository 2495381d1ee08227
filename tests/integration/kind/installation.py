"""timeslice on a cluster, put there with the commands that users have.

By default a kind cluster is made for the run. With KUBECONFIG set, that cluster's current context is taken instead: its
nodes must have the images, or get them from TIMESLICE_REGISTRY; its workers are labelled, and all that is put there is
taken away again. With TIMESLICE_INSTALLED=1 besides, nothing is labelled, put there or taken away: all that is there.
With TIMESLICE_KIND=NAME a cluster that //tools/kind:up made is taken, with its images loaded, and stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kube import Kube
from machine_state import machine_state

from timeslice_kind.clusters import Cluster, Clusters, this_process
from timeslice_kind.golang import default_env
from timeslice_kind.main import find_sources
from timeslice_kind.progress import say, step

SYSTEM = "timeslice-system"
GROUPS = ("samplers", "trainers")
TAINTED = "trainers"
ROOT = Path.cwd()
"""Of the runfiles, where Bazel starts tests."""


def told(command: list[str], timeout_s: float = 600) -> None:
    """Run one of our commands, with what it says in the test's log."""
    done = subprocess.run(command, stdout=sys.stderr, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with status {done.returncode}"


@dataclass
class Installation:
    """A cluster with timeslice on it."""

    kube: Kube
    cluster: Cluster | None
    """None: somebody else's, by KUBECONFIG."""

    before: dict[str, list[str]] = field(default_factory=dict)
    """The machine before the cluster."""

    nodes: dict[str, str] = field(default_factory=dict)
    """Group: the node that it is on."""

    stays: bool = False
    """The cluster was there before, and is there after."""

    def deploy(self, command: str, *arguments: str) -> None:
        """./bazelw run //deploy:COMMAND -- ARGUMENTS"""
        told(self._deploy_command(command, arguments))

    def deploy_fails(self, command: str, *arguments: str) -> str:
        """What it says, where it must end with another status than 0."""
        done = subprocess.run(
            self._deploy_command(command, arguments), capture_output=True, text=True, timeout=600, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode != 0, f"//deploy:{command} {' '.join(arguments)} succeeded:\n{said}"
        return said

    def _deploy_command(self, command: str, arguments: Sequence[str]) -> list[str]:
        context = ["--context", self.kube.context, "--kubectl", self.kube.kubectl]
        return [str(ROOT / "deploy" / command), command, *arguments, *context]

    def on_node(self, node: str, *argv: str) -> str:
        """A command on a node of our own cluster."""
        assert self.cluster is not None
        done = subprocess.run(self.cluster.node_command(node, argv), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv} on {node}: {done.stdout}{done.stderr}"
        return done.stdout

    def inside(self, pod: str, namespace: str) -> list[str]:
        """Begin of a command that runs in a pod, with its input, whatever becomes of API server and kubelet."""
        assert self.cluster is not None
        found = self.kube.get("pod", pod, "-n", namespace)
        [status] = found["status"]["containerStatuses"]
        container = status["containerID"].removeprefix("containerd://")
        argv = ["crictl", "exec", "--interactive", container]
        return self.cluster.node_command(found["spec"]["nodeName"], argv, takes_input=True)


def clusters() -> Clusters:
    """Of the user who runs the tests, whose home Bazel's tests do not have."""
    env = default_env()
    return Clusters(find_sources(), env | {"HOME": env.get("USER_HOME") or env["HOME"]})


def make_cluster() -> Installation:
    """A cluster of our own, with the images loaded; or the one that TIMESLICE_KIND or KUBECONFIG names."""
    if name := os.environ.get("TIMESLICE_KIND"):
        standing = clusters().get(name)
        standing.existing()
        return Installation(Kube(standing.kubectl, standing.context, standing.command), standing, stays=True)
    if os.environ.get("KUBECONFIG"):
        kubectl = shutil.which("kubectl")
        assert kubectl, "KUBECONFIG is set, and there is no kubectl on PATH"
        context = subprocess.check_output([kubectl, "config", "current-context"], text=True).strip()
        return Installation(Kube(kubectl, context), None)
    before = machine_state()
    cluster = clusters().up(f"test-{os.getpid()}", workers=2, owner=this_process())
    made = Installation(Kube(cluster.kubectl, cluster.context, cluster.command), cluster, before)
    try:
        with step("loading the images"):
            told([str(ROOT / "images/load"), "--name", cluster.name, "--kind", cluster.kind])
    except BaseException:
        clusters().down(cluster.name)
        raise
    return made


def label_nodes(made: Installation) -> None:
    """As an administrator says which nodes take part: one node for each group."""
    workers = [
        node["metadata"]["name"]
        for node in made.kube.get("nodes")["items"]
        if "node-role.kubernetes.io/control-plane" not in node["metadata"]["labels"]
    ]
    assert len(workers) >= len(GROUPS), f"two workers are needed, there are {workers}"
    made.nodes = dict(zip(GROUPS, workers, strict=False))
    for group, node in made.nodes.items():
        made.kube.call(
            "label", "--overwrite", "node", node, "timeslice.io/enabled=true", f"group.timeslice.io/{group}=true"
        )
    # One of them keeps other pods away; the orchestrator must have a place, and the control plane is none.
    made.kube.call("taint", "--overwrite", "node", made.nodes[TAINTED], "timeslice.io/shared=true:NoSchedule")


def install(made: Installation) -> None:
    """Overlay mock-gpu, which waits until all of it runs."""
    if os.environ.get("TIMESLICE_INSTALLED"):
        for group in GROUPS:
            nodes = made.kube.get("nodes", "-l", f"group.timeslice.io/{group}=true")["items"]
            made.nodes[group] = nodes[0]["metadata"]["name"]
        return
    label_nodes(made)
    began = time.monotonic()
    registry = os.environ.get("TIMESLICE_REGISTRY")
    made.deploy("apply", "--overlay", "mock-gpu", *(["--registry", registry] if registry else []))
    say(f"overlay mock-gpu runs after {time.monotonic() - began:.0f} s")


def remove(made: Installation) -> None:
    """The cluster, or what was put on somebody else's."""
    if made.stays:
        return
    if made.cluster is not None:
        clusters().down(made.cluster.name)
        return
    if os.environ.get("TIMESLICE_INSTALLED"):
        return
    made.deploy("delete", "--overlay", "mock-gpu", "--groups", "--force")
    for group, node in made.nodes.items():
        made.kube.call("label", "node", node, "timeslice.io/enabled-", f"group.timeslice.io/{group}-")
    made.kube.call("taint", "node", made.nodes[TAINTED], "timeslice.io/shared-")


def collect_logs(made: Installation, folder: Path) -> None:
    """What somebody needs who looks into a failure: our logs, all objects, and the nodes' logs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in {
        "objects": ["get", "pods,events,daemonsets,deployments,resourceclaims,nodes", "-A", "-o", "wide"],
        "groups": ["get", "timeslicegroups", "-o", "yaml"],
        "orchestrator": ["logs", "-n", SYSTEM, "deploy/timesliceorchestrator", "--all-containers", "--tail=-1"],
        "orchestrator-before": ["logs", "-n", SYSTEM, "deploy/timesliceorchestrator", "--previous", "--tail=-1"],
        "agents": ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=snapshot-agent", "--prefix", "--tail=-1"],
        "mock": ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=timeslice-gpu-mock", "--prefix", "--tail=-1",
                 "--all-containers"],
    }.items():  # fmt: skip
        done = subprocess.run(
            [made.kube.kubectl, "--context", made.kube.context, *arguments],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
    if made.cluster is not None:
        made.cluster.export_logs(folder / "nodes")
    say(f"logs are in {folder}")
