"""How far a rollout is, told from the objects as the API server shows them: decided here, without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_REASON_CHARS = 300

_NO_IMAGE = "the node cannot get it: `./bazelw run //images:load -- --name CLUSTER` for kind, else :apply --registry"
ADVICE = {
    "ErrImagePull": _NO_IMAGE,
    "ErrImageNeverPull": _NO_IMAGE,
    "ImagePullBackOff": _NO_IMAGE,
    "CreateContainerConfigError": "something that it mounts or reads is missing",
}


@dataclass(slots=True)
class Seen:
    """What the watches have told so far."""

    workloads: dict[str, Any] = field(default_factory=dict)
    """By "kind/name", lower case."""
    pods: dict[str, Any] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    """The last warning of the kubelet or the scheduler about a pod."""


def progress(workload: Any) -> tuple[int, int, bool]:
    """(ready pods of the newest template, pods wanted, whether that is all and old ones are gone)."""
    status, spec = workload.get("status", {}), workload["spec"]
    is_current = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
    if workload["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        updated, ready = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
        is_done = is_current and updated == wanted and ready == wanted
    else:
        wanted = spec.get("replicas", 1)
        updated, ready = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
        is_done = is_current and updated == wanted and ready == wanted and status.get("replicas", 0) == wanted
    return (min(ready, updated) if is_current else 0), wanted, is_done


def troubles(seen: Seen) -> list[str]:
    """One line for each pod that is not ready, with the reason as far as it shows."""
    return [
        f"pod {name}{_on_node(pod)}: {reason}"
        for name, pod in sorted(seen.pods.items())
        if (reason := trouble(pod, seen.warnings)) is not None
    ]


def trouble(pod: Any, warnings: Mapping[str, str]) -> str | None:
    """Why a pod is not ready; None if it is, or is on its way out."""
    if pod["metadata"].get("deletionTimestamp"):
        return None
    status = pod.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    if conditions.get("Ready", {}).get("status") == "True" or status.get("phase") == "Succeeded":
        return None
    for container in _statuses(status):
        told = _of_container(container)
        if told is not None:
            return _cut(f"container {container['name']}: {told}")
    warning = warnings.get(pod["metadata"]["name"])
    if warning is not None:
        return _cut(warning)
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _cut(f"not scheduled: {scheduled.get('message') or scheduled.get('reason', '')}")
    if any("running" in container.get("state", {}) for container in _statuses(status)):
        return "running, not ready yet"
    return "starting"


def _of_container(container: Any) -> str | None:
    """What a container's status tells about its trouble."""
    state = container.get("state", {})
    waiting = state.get("waiting")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    told = []
    if waiting and waiting.get("reason") not in ("ContainerCreating", "PodInitializing", None):
        told.append(waiting["reason"])
        if waiting["reason"] in ADVICE:
            told.append(ADVICE[waiting["reason"]])
        elif waiting.get("message") and not ended:
            told.append(waiting["message"])
    if ended and ended.get("exitCode"):
        said = str(ended.get("message") or ended.get("reason", "")).strip().splitlines()
        told.append(f"ended with status {ended['exitCode']}" + (f": {said[-1]}" if said else ""))
    return "; ".join(told) or None


def is_crashing(pod: Any) -> bool:
    """Whether its log is worth a look."""
    return any(
        container.get("restartCount", 0) > 0 or "terminated" in container.get("state", {})
        for container in _statuses(pod.get("status", {}))
    )


def restarts(pod: Any) -> int:
    """Of all its containers."""
    return sum(container.get("restartCount", 0) for container in _statuses(pod.get("status", {})))


def _statuses(status: Any) -> Iterable[Any]:
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _on_node(pod: Any) -> str:
    node = pod["spec"].get("nodeName")
    return f" on {node}" if node else ""


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[:MAX_REASON_CHARS] + " ..."
