"""Before anything is changed: would it work, and may we?"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from timeslice_deploy.errors import BadUsage, DeployError
from timeslice_deploy.kubectl import Kubectl, contexts
from timeslice_deploy.manifests import Object
from timeslice_deploy.names import (
    CRD,
    ENABLED_LABEL,
    GROUP_LABEL_PREFIX,
    NAMESPACE,
    OLDEST_KUBERNETES,
)

AT_ONCE = 8
"""Questions about rights that are asked at the same time."""

CLUSTER_SCOPED = {
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
    "DeviceClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


async def chosen_context(program: str, given: str | None, of_kind: Collection[str] = ()) -> str:
    """The context to work in. Raises: BadUsage with the list of those that there are, unless it was named.

    `of_kind`: those of //tools/kind, which have kubeconfigs of their own."""
    known = await contexts(program)
    if given in known and given is not None:
        return given
    listed = "\n".join(f"  --context {name}" for name in sorted({*known, *of_kind})) or "  (none: is KUBECONFIG right?)"
    what = f"there is no context {given!r}" if given else "which cluster? Name its context"
    raise BadUsage(f"{what}; the kubeconfig has\n{listed}")


async def server_version(kubectl: Kubectl) -> str:
    """Such as "v1.37.2". Raises: DeployError if nobody answers, or it is too old."""
    answer = await kubectl.call("version", "-o", "json", "--request-timeout=15s")
    server: dict[str, Any] = {}
    if answer.out.strip():
        server = json.loads(answer.out).get("serverVersion") or {}
    if not server:
        raise kubectl.failure(answer, ("version",))
    version = str(server["gitVersion"])
    found = re.match(r"v(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise DeployError(
            f"context {kubectl.context!r} is Kubernetes {version}; timeslice needs {oldest} or newer (dynamic resource"
            " allocation)"
        )
    return version


async def rights(kubectl: Kubectl, objects: Sequence[Object]) -> None:
    """Raises: DeployError that lists what we would be refused, if anything."""
    wanted = {(verb, resource_of(o), o["kind"] not in CLUSTER_SCOPED) for o in objects for verb in ("create", "patch")}
    wanted |= {("get", "secrets", True), ("create", "secrets", True), ("patch", "secrets", True)}
    limit = asyncio.Semaphore(AT_ONCE)

    async def refused(verb: str, resource: str, is_namespaced: bool) -> str | None:
        where = ["--namespace", NAMESPACE] if is_namespaced else []
        async with limit:
            answer = await kubectl.call("auth", "can-i", verb, resource, *where)
        if answer.out.strip() == "yes":
            return None
        if answer.out.strip() == "no":
            return f"{verb} {resource}" + (f" in {NAMESPACE}" if is_namespaced else "")
        raise kubectl.failure(answer, ("auth", "can-i"))

    missing = sorted(filter(None, await asyncio.gather(*(refused(*one) for one in sorted(wanted)))))
    if missing:
        listed = "\n".join(f"  {one}" for one in missing)
        raise DeployError(
            f"context {kubectl.context!r} lacks rights (`kubectl auth can-i`); ask an administrator, or"
            f" name the context of one:\n{listed}"
        )


def resource_of(o: Object) -> str:
    """The resource of an object, as RBAC and kubectl name it: "daemonsets.apps"."""
    kind = str(o["kind"]).lower()
    if kind.endswith(("s", "x", "ch")):
        plural = kind + "es"
    elif kind.endswith("y"):
        plural = kind[:-1] + "ies"
    else:
        plural = kind + "s"
    group, separator, _ = str(o["apiVersion"]).partition("/")
    return f"{plural}.{group}" if separator else plural


async def crd(kubectl: Kubectl, objects: Sequence[Object]) -> None:
    """Raises: DeployError if the cluster keeps groups in a version that ours does not know."""
    ours = next((o for o in objects if o["kind"] == "CustomResourceDefinition" and o["metadata"]["name"] == CRD), None)
    theirs = await kubectl.get("customresourcedefinition", CRD)
    if ours is None or theirs is None:
        return
    known = {version["name"] for version in ours["spec"]["versions"]}
    stored = set(theirs.get("status", {}).get("storedVersions", ()))
    if not stored <= known:
        raise DeployError(
            f"the cluster keeps its TimeSliceGroups as {', '.join(sorted(stored - known))}, and this release knows only"
            f" {', '.join(sorted(known))}: a newer timeslice was installed; use its release, or delete the groups first"
            " (:delete --groups)"
        )
    if ours["spec"]["scope"] != theirs["spec"]["scope"]:
        raise DeployError(
            f"the CRD in the cluster is {theirs['spec']['scope']}, ours {ours['spec']['scope']}, and that cannot be"
            " changed; delete the old one first (:delete --groups)"
        )


async def nodes(kubectl: Kubectl) -> list[str]:
    """What a person should know about the nodes' labels, if anything. Never an error: labels can come later."""
    enabled = await kubectl.items("nodes", "-l", f"{ENABLED_LABEL}=true")
    if not enabled:
        return [
            f"no node has the label {ENABLED_LABEL}=true, so no agent runs anywhere: `kubectl label node NODE"
            f" {ENABLED_LABEL}=true {GROUP_LABEL_PREFIX}GROUP=true`"
        ]
    without = [node["metadata"]["name"] for node in enabled if not groups_of(node)]
    if without:
        return [f"{', '.join(without)}: in no group yet, `kubectl label node NODE {GROUP_LABEL_PREFIX}GROUP=true`"]
    return []


def groups_of(node: Any) -> list[str]:
    """The groups that a node's labels name."""
    labels = node["metadata"].get("labels", {})
    return sorted(
        key.removeprefix(GROUP_LABEL_PREFIX)
        for key, value in labels.items()
        if key.startswith(GROUP_LABEL_PREFIX) and value == "true"
    )
