"""Hands on the nodes, for faults: a privileged pod on each, as any cluster lets an administrator have it."""

from __future__ import annotations

import json

from job_pod import IMAGE
from kube import Kube, Object

NAME = "hands"

KILL = """
import json, os, pathlib, signal, sys
killed = []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        words = (process / "cmdline").read_bytes().decode().split(chr(0))
    except OSError:
        continue
    names = {os.path.basename(word) for word in words}
    if int(process.name) != os.getpid() and set(sys.argv[1:]) <= names:
        os.kill(int(process.name), signal.SIGKILL)
        killed.append(int(process.name))
print(json.dumps(killed))
"""


def daemon_set(namespace: str) -> Object:
    spec = {
        "hostPID": True,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [
            {
                "name": NAME,
                "image": IMAGE,
                "command": ["sleep", "infinity"],
                "securityContext": {"privileged": True},
                "volumeMounts": [{"name": "host", "mountPath": "/host"}],
            }
        ],
    }
    labels = {"app": NAME}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


class Hands:
    """Of all nodes; they are gone with the namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        kube.apply(daemon_set(namespace))
        kube.call("rollout", "status", f"daemonset/{NAME}", "-n", namespace, "--timeout=60s", timeout_s=70)
        pods = kube.get("pods", "-n", namespace, "-l", f"app={NAME}")["items"]
        self._pods = {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in pods}

    def run(self, node: str, *argv: str) -> str:
        return self._kube.exec(self._pods[node], self._namespace, *argv)

    def kill(self, node: str, *words: str) -> list[int]:
        """kill -9 each process whose command line has all of these words; an AssertionError where there is none."""
        killed: list[int] = json.loads(self.run(node, "python3", "-c", KILL, *words))
        assert killed, f"nothing on {node} runs {words}"
        return killed
