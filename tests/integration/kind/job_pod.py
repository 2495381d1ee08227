"""Jobs' pods, as users write them: the two labels, a claim, an image that knows nothing of mocks.

A pod idles; what it does is told line by line to device_process.py, which is run in it with `kubectl exec`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from kube import Kube, Object

HERE = Path(__file__).parent

IMAGE = "localhost/timeslice-client-example:" + "0.1.0"
CODE = "job-code"

OURS = "tests.timeslice.io/namespace"
"""Label of the namespaces of tests."""
EMPTIED = "deployments,daemonsets,pods,resourceclaims,configmaps"
"""What tests put into one; who makes others comes first."""

CALL_S = 150.0
"""Longer than any acquire of a test may take."""

_NUMBERS = itertools.count()


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {OURS: "true"}}}


@contextlib.contextmanager
def in_namespace(kube: Kube, name: str, *objects: Object) -> Iterator[Kube]:
    """A namespace with the jobs' code and these objects, which are gone behind the block with all that came to them.

    The empty namespace stays for the next test: its deletion takes the controller manager 5 s.
    """
    kube.apply(namespace(name))
    kube.apply(code(name), *objects)
    yield kube
    kube.call("delete", EMPTIED, "--all", "-n", name, "--timeout=60s", timeout_s=70)


def delete_namespaces(kube: Kube) -> None:
    kube.call("delete", "namespaces", "-l", OURS, "--timeout=60s", timeout_s=70)


def code(namespace: str) -> Object:
    """device_process.py for pods to mount."""
    text = (HERE.parent / "device_process.py").read_text()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CODE, "namespace": namespace},
        "data": {"device_process.py": text},
    }


def new_claim_name() -> str:
    """One that no test had: for a minute, a kubelet refuses a claim whose name another one of the namespace had."""
    return f"gpu-{next(_NUMBERS)}"


def claim(namespace: str, name: str) -> Object:
    """One device, for all pods that name it."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(
    namespace: str, name: str, job: str | None, group: str, claim: str | None, command: list[str] | None = None
) -> Object:
    """A pod of a job (None: it has no label), on a node of the group."""
    labels = {"timeslice.io/group": group} | ({} if job is None else {"timeslice.io/job-id": job})
    container: Object = {
        "name": "job",
        "image": IMAGE,
        "command": command or ["sleep", "infinity"],
        "volumeMounts": [
            {"name": "podinfo", "mountPath": "/etc/podinfo"},
            {"name": "code", "mountPath": "/code"},
        ],
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {f"group.timeslice.io/{group}": "true"},
        "tolerations": [{"key": "timeslice.io/shared", "operator": "Exists"}],
        "volumes": [
            {
                "name": "podinfo",
                "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
            },
            {"name": "code", "configMap": {"name": CODE}},
        ],
        "containers": [container],
    }
    if claim is not None:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Process:
    """device_process.py in a pod."""

    def __init__(self, kube: Kube, namespace: str, pod: str, inside: list[str] | None = None) -> None:
        """`inside`: begin of a command that runs in the pod, as `Installation.inside` makes it; None: by kubectl."""
        if inside is None:
            inside = [kube.kubectl, "--context", kube.context, "exec", "-i", pod, "-n", namespace, "--"]
        self._child = subprocess.Popen(
            [*inside, "python3", "/code/device_process.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, method: str, *arguments: Any) -> None:
        """Ask for something; `result()` gets the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._child.stdin.flush()

    def result(self) -> Any:
        """The answer to the oldest question; waits for it. An AssertionError tells what went wrong in the pod."""
        assert self._child.stdout is not None
        late = threading.Timer(CALL_S, self._child.kill)
        late.start()
        try:
            line = self._child.stdout.readline()
        finally:
            late.cancel()
        assert line, f"the process in the pod ended with {self._child.wait()}, or did not answer for {CALL_S:.0f} s"
        answer = json.loads(line)
        assert "ok" in answer, answer
        return answer["ok"]

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, *arguments)
        return self.result()

    def abandon(self) -> None:
        """End kubectl's side; its pod may be gone, or the process busy."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()
