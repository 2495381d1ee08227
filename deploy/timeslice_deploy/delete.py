"""`:delete`: take it out again, and keep what is worth keeping unless told otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from timeslice_deploy import checks
from timeslice_deploy.errors import DeployError
from timeslice_deploy.kubectl import Kubectl
from timeslice_deploy.manifests import Object, dump
from timeslice_deploy.names import CRD, GROUPS, NAMESPACE, PART_OF
from timeslice_deploy.waiting import Say

KEPT = ("Namespace", "CustomResourceDefinition")


async def delete(
    kubectl: Kubectl, objects: Sequence[Object], *, with_groups: bool, force: bool, timeout_s: float, say: Say
) -> None:
    """Delete what `objects` name, the namespace with the certificates last. The CRD and the groups stay without
    `with_groups`. Raises: DeployError, also if jobs still hold groups or wait for them and `force` is not given."""
    await checks.server_version(kubectl)
    groups = await _unused_groups(kubectl, force)
    rest = [o for o in objects if o["kind"] not in KEPT]
    out = await kubectl.run("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=dump(rest))
    for line in out.splitlines():
        say(f"  {line}")
    await _pods_gone(kubectl, timeout_s)
    if with_groups:
        await _delete_groups(kubectl, force, timeout_s, say)
        say("  " + (await kubectl.run("delete", "customresourcedefinition", CRD, "--ignore-not-found")).strip())
    elif groups:
        say(f"kept: {len(groups)} TimeSliceGroups and their CRD; --groups deletes them too")
    await _delete_namespace(kubectl, timeout_s, say)


def in_use(group: Any) -> str | None:
    """Who holds a group or waits for it; None if nobody does."""
    told = group.get("status", {})
    lease, queue = told.get("lease") or {}, told.get("queue") or []
    if not lease and not queue:
        return None
    waiting = told.get("queueLength", len(queue))
    return f"group {group['metadata']['name']}: held by {lease.get('job', 'nobody')}, {waiting} waiting"


async def _unused_groups(kubectl: Kubectl, force: bool) -> list[Any]:
    """All groups. Raises: DeployError if jobs hold or want one, unless forced."""
    groups = await kubectl.items(GROUPS)
    busy = [line for group in groups if (line := in_use(group)) is not None]
    if busy and not force:
        listed = "\n".join(f"  {line}" for line in busy)
        raise DeployError(
            f"jobs still take turns:\n{listed}\nEnd them first. With --force all is deleted under them: jobs whose"
            " memory is saved then stay as they are, without device memory, until their pods are deleted"
        )
    return groups


async def _delete_groups(kubectl: Kubectl, force: bool, timeout_s: float, say: Say) -> None:
    """When the orchestrator is gone: while it runs, it makes a group anew for each label of a node.

    So its finalizer is taken off here, once it is sure that no lease came in meanwhile.
    """
    names = [group["metadata"]["name"] for group in await _unused_groups(kubectl, force)]
    if not names:
        return
    limit = f"--timeout={timeout_s:g}s"
    await kubectl.run("delete", GROUPS, *names, "--ignore-not-found", "--wait=false")
    for name in names:
        answer = await kubectl.call(
            "patch", GROUPS, name, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}})
        )
        if answer.status != 0 and "(NotFound)" not in answer.err:
            raise kubectl.failure(answer, ("patch", GROUPS, name))
    answer = await kubectl.call("wait", "--for=delete", limit, GROUPS, *names, wait_s=timeout_s)
    if answer.status != 0:
        raise DeployError(f"TimeSliceGroups are still there after {timeout_s:g} s: {answer.err.strip()}")
    say(f"  deleted {len(names)} TimeSliceGroups")


async def _pods_gone(kubectl: Kubectl, timeout_s: float) -> None:
    """Agents finish or roll back what is under way: no node is left in the middle of a snapshot."""
    answer = await kubectl.call(
        "wait", "--for=delete", f"--timeout={timeout_s:g}s", "pods", "--namespace", NAMESPACE, "-l", PART_OF,
        wait_s=timeout_s,
    )  # fmt: skip
    if answer.status != 0 and "no matching resources" not in answer.err:
        raise DeployError(f"pods are still there after {timeout_s:g} s: {answer.err.strip()}")


async def _delete_namespace(kubectl: Kubectl, timeout_s: float, say: Say) -> None:
    pods, claims = await asyncio.gather(
        kubectl.items("pods", "--namespace", NAMESPACE),
        kubectl.items("persistentvolumeclaims", "--namespace", NAMESPACE),
    )
    if pods or claims:
        names = ", ".join(o["metadata"]["name"] for o in [*pods, *claims])
        say(f"kept: namespace {NAMESPACE}, for what is not ours in it: {names}")
        return
    limit = f"--timeout={timeout_s:g}s"
    answer = await kubectl.call("delete", "namespace", NAMESPACE, "--ignore-not-found", limit, wait_s=timeout_s)
    if answer.status != 0:
        raise kubectl.failure(answer, ("delete", "namespace"))
    say(f"  namespace {NAMESPACE} deleted, and the certificates with it")
