"""What pods get of mock GPUs, with an image that knows nothing of them: by a claim, by nvidia.com/gpu, or nothing."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from installation import SYSTEM, Installation
from job_pod import claim, in_namespace, pod
from kube import Kube, Object
from system_pods import AGENT, MOCK, gpu_mock, system_pod

NAMESPACE = "mock-gpus"
GROUP = "trainers"
MIB = 1 << 20
HELD_MIB = 48
"""Less than what is filled in advance of each device (deploy/kustomize/overlays/mock-gpu/driver.yaml)."""

SEES = """
import json, os
from cuda.bindings import driver
import pynvml
assert driver.cuInit(0)[0] == 0
count = driver.cuDeviceGetCount()[1]
uuids = [driver.cuDeviceGetUuid(ordinal)[1].bytes.hex() for ordinal in range(count)]
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps({"cuda": uuids, "nvml": [pynvml.nvmlDeviceGetUUID(one) for one in handles], "uid": os.getuid()}))
"""

HOLDS = f"""
import sys
from cuda.bindings import driver
def ok(result):
    assert result[0] == 0, result
    return result[1] if len(result) > 1 else None
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
held = ok(driver.cuMemAlloc({HELD_MIB} << 20))
ok(driver.cuMemsetD8(held, 7, {HELD_MIB} << 20))
print("holds", flush=True)
sys.stdin.read()
"""

NODE_VIEW = """
import json, pynvml
pynvml.nvmlInit()
found = []
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        with open(f"/proc/{process.pid}/cgroup") as cgroup:
            found.append([pynvml.nvmlDeviceGetUUID(handle), process.usedGpuMemory, cgroup.read()])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def kube(timeslice: Installation) -> Iterator[Kube]:
    with in_namespace(timeslice.kube, NAMESPACE, claim(NAMESPACE, "shared")) as kube:
        yield kube


def unprivileged(made: Object, uid: int) -> Object:
    """The pod as the `restricted` security standard wants it, with no more memory than the mock may cost it."""
    made["spec"]["securityContext"] = {
        "runAsUser": uid, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}
    }  # fmt: skip
    [container] = made["spec"]["containers"]
    container["securityContext"] = {
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip
    return made


def with_resource(made: Object, count: int, memory: str) -> Object:
    [container] = made["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpu": count, "memory": memory}}
    return made


def start(kube: Kube, made: Object) -> str:
    """The pod's name, once it runs."""
    kube.apply(made)
    name = str(made["metadata"]["name"])
    kube.wait("pod", name, "condition=Ready", NAMESPACE)
    return name


def devices(kube: Kube, pod_name: str) -> Any:
    """What a program in the pod sees."""
    seen = json.loads(kube.exec(pod_name, NAMESPACE, "python3", "-c", SEES))
    assert seen["cuda"] == [uuid.removeprefix("GPU-").replace("-", "") for uuid in seen["nvml"]]
    return seen


def node_of(kube: Kube, pod_name: str) -> str:
    return str(kube.get("pod", pod_name, "-n", NAMESPACE)["spec"]["nodeName"])


def slice_of(kube: Kube, node: str) -> Object:
    [found] = [one for one in kube.get("resourceslices")["items"] if one["spec"]["nodeName"] == node]
    return dict(found)


def uuids(found: Object) -> list[str]:
    return [one["attributes"]["uuid"]["string"] for one in found["spec"]["devices"]]


class Holder:
    """A process in a pod that holds memory of its first device."""

    def __init__(self, kube: Kube, pod_name: str) -> None:
        command = [kube.kubectl, "--context", kube.context, "exec", "-i", pod_name, "-n", NAMESPACE, "--"]
        self._child = subprocess.Popen(
            [*command, "python3", "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Holder:
        assert self._child.stdout
        assert self._child.stdout.readline() == "holds\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate()  # closes its stdin, with which it ends
        assert self._child.returncode == 0


def test_pods_of_two_jobs_share_a_claim_and_its_device(kube: Kube) -> None:
    a = start(kube, unprivileged(pod(NAMESPACE, "a", "a", GROUP, "shared"), 1000))
    b = start(kube, unprivileged(pod(NAMESPACE, "b", "b", GROUP, "shared"), 2000))
    [result] = kube.get("resourceclaim", "shared", "-n", NAMESPACE)["status"]["allocation"]["devices"]["results"]
    [uuid] = [
        one["attributes"]["uuid"]["string"]
        for one in slice_of(kube, node_of(kube, a))["spec"]["devices"]
        if one["name"] == result["device"]
    ]
    seen = [devices(kube, a), devices(kube, b)]
    assert [one["nvml"] for one in seen] == [[uuid], [uuid]]
    assert [one["uid"] for one in seen] == [1000, 2000]


@pytest.mark.parametrize("count", [1, 2])
def test_a_pod_has_as_many_devices_as_it_asks_for(kube: Kube, count: int) -> None:
    made = with_resource(pod(NAMESPACE, f"asks-for-{count}", "c", GROUP, None), count, "256Mi")
    name = start(kube, unprivileged(made, 1000))
    seen = devices(kube, name)["nvml"]
    assert len(seen) == count
    assert set(seen) <= set(uuids(slice_of(kube, node_of(kube, name))))
    kube.call("delete", "pod", name, "-n", NAMESPACE)


def test_a_pod_without_a_device_has_no_driver(kube: Kube) -> None:
    name = start(kube, pod(NAMESPACE, "none", "d", GROUP, None))
    tried = "import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError as error: print(error)"
    assert "cannot open shared object file" in kube.exec(name, NAMESPACE, "python3", "-c", tried)


def test_the_agent_sees_the_process_and_the_memory_is_not_the_pods(kube: Kube) -> None:
    """Its limit has no room for what it holds on the device: that counts where the driver was installed."""
    made = with_resource(pod(NAMESPACE, "holder", "e", GROUP, None), 1, f"{HELD_MIB}Mi")
    name = start(kube, unprivileged(made, 1000))
    agent = system_pod(kube, AGENT, node_of(kube, name))["metadata"]["name"]
    pod_uid = kube.get("pod", name, "-n", NAMESPACE)["metadata"]["uid"]
    with Holder(kube, name):
        seen = json.loads(kube.exec(agent, SYSTEM, "/usr/bin/python3", "-c", NODE_VIEW))
        [mine] = [one for one in seen if pod_uid in one[2] or pod_uid.replace("-", "_") in one[2]]
        assert mine[:2] == [devices(kube, name)["nvml"][0], HELD_MIB * MIB]
    [status] = kube.get("pod", name, "-n", NAMESPACE)["status"]["containerStatuses"]
    assert (status["restartCount"], status["ready"]) == (0, True)
    kube.call("delete", "pod", name, "-n", NAMESPACE)


def test_a_lost_device_is_offered_in_neither_way(kube: Kube, timeslice: Installation) -> None:
    node = timeslice.nodes[GROUP]
    both = uuids(slice_of(kube, node))

    def lose(code: str) -> None:
        gpu_mock(kube, node, "inject", "device-lost", "device=1", code)

    def offered(count: int, wanted: list[str]) -> None:
        kube.watch_until(lambda one: one["status"]["allocatable"]["nvidia.com/gpu"] == str(count), "node", node)
        kube.watch_until(
            lambda one: one["spec"]["nodeName"] == node and uuids(one) == wanted, "resourceslices"
        )  # fmt: skip

    lose("code=999")
    try:
        offered(1, both[:1])
    finally:
        lose("code=0")
    offered(2, both)


def test_a_kubelet_that_is_killed_finds_both_plugins_again(kube: Kube, timeslice: Installation) -> None:
    if timeslice.cluster is None:
        pytest.skip("somebody else's cluster: its kubelets are left alone")
    # In the pod's own process: what `kubectl exec` starts ends with the kubelet that carries its streams.
    program = HOLDS.replace("sys.stdin.read()", "import signal; signal.pause()")
    holder = start(kube, pod(NAMESPACE, "holder", "e", GROUP, "shared", ["python3", "-c", program]))
    node = node_of(kube, holder)
    before, seen = slice_of(kube, node)["metadata"]["uid"], devices(kube, holder)
    plugin = system_pod(kube, MOCK, node)["metadata"]["name"]
    known = log_lines(kube, plugin).count(REGISTERED)

    timeslice.on_node(node, "sh", "-c", "kill -9 $(pidof kubelet)")

    kube.watch_until(lambda one: one["spec"]["nodeName"] == node and one["metadata"]["uid"] != before, "resourceslices")
    wait_for_registration(kube, plugin, known + 1)
    # The pod goes on; new ones come in both ways, the claim's with the device that the claim had.
    after = start(kube, unprivileged(pod(NAMESPACE, "after", "f", GROUP, "shared"), 1000))
    assert devices(kube, after) == {**seen, "uid": 1000}
    asking = start(kube, with_resource(pod(NAMESPACE, "asking", "g", GROUP, None), 1, "256Mi"))
    assert len(devices(kube, asking)["nvml"]) == 1
    [status] = kube.get("pod", holder, "-n", NAMESPACE)["status"]["containerStatuses"]
    assert (status["restartCount"], status["ready"]) == (0, True)


REGISTERED = "registered"


def log_lines(kube: Kube, plugin: str) -> list[str]:
    """The messages of the device plugin so far."""
    text = kube.call("logs", plugin, "-n", SYSTEM, "-c", "device-plugin")
    return [json.loads(line)["msg"] for line in text.splitlines()]


def wait_for_registration(kube: Kube, plugin: str, number: int, timeout_s: float = 60.0) -> None:
    """Follow the device plugin's log from its beginning until it has registered so often."""
    deadline = time.monotonic() + timeout_s
    command = [kube.kubectl, "--context", kube.context, "logs", "-f", plugin, "-n", SYSTEM, "-c", "device-plugin"]
    while time.monotonic() < deadline:  # a kubelet that is not up yet ends the stream
        seen = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            late = threading.Timer(deadline - time.monotonic(), child.kill)
            late.start()
            assert child.stdout
            try:
                for line in child.stdout:
                    seen += json.loads(line)["msg"] == REGISTERED
                    if seen == number:
                        return
            finally:
                late.cancel()
                child.kill()
    raise AssertionError(f"the device plugin has not registered {number} times within {timeout_s:.0f} s")
