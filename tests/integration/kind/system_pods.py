"""Our own pods on a node: the agent, the mock driver."""

from __future__ import annotations

from installation import SYSTEM
from kube import Kube, Object

AGENT = "snapshot-agent"
MOCK = "timeslice-gpu-mock"


def system_pod(kube: Kube, app: str, node: str) -> Object:
    """The pod of a DaemonSet on the node: the one that stays."""
    pods = kube.get(
        "pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={app}", "--field-selector", f"spec.nodeName={node}"
    )["items"]
    [found] = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return dict(found)


def gpu_mock(kube: Kube, node: str, *arguments: str) -> str:
    """The command gpu-mock on a node's mock GPUs."""
    name = system_pod(kube, MOCK, node)["metadata"]["name"]
    return kube.exec(name, SYSTEM, "/usr/lib/timeslice-gpu-mock/gpu-mock", *arguments, container="device-plugin")
