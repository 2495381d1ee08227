"""`:status`: one screen about an installation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from timeslice_deploy import checks, secrets
from timeslice_deploy.apply import existing_secrets
from timeslice_deploy.errors import DeployError
from timeslice_deploy.kubectl import Kubectl
from timeslice_deploy.names import (
    AGENT,
    AGENT_SECRET,
    CA_SECRET,
    CRD,
    ENABLED_LABEL,
    GROUPS,
    NAMESPACE,
    ORCHESTRATOR,
    ORCHESTRATOR_SECRET,
    PART_OF,
)
from timeslice_deploy.rollout import progress, restarts, trouble


async def status(kubectl: Kubectl, now: datetime) -> tuple[list[str], bool]:
    """(lines, whether all is well). Raises: DeployError if nobody answers."""
    version = await checks.server_version(kubectl)
    deployments, daemonsets, pods, nodes, groups, crd = await asyncio.gather(
        kubectl.items("deployments", "--namespace", NAMESPACE, "-l", PART_OF),
        kubectl.items("daemonsets", "--namespace", NAMESPACE, "-l", PART_OF),
        kubectl.items("pods", "--namespace", NAMESPACE, "-l", PART_OF),
        kubectl.items("nodes", "-l", f"{ENABLED_LABEL}=true"),
        kubectl.items(GROUPS),
        kubectl.get("customresourcedefinition", CRD),
    )
    lines = [f"cluster {kubectl.context}, Kubernetes {version}"]
    if not deployments and not daemonsets:
        return [
            *lines,
            f"timeslice is not installed there (nothing in namespace {NAMESPACE}); //deploy:apply does that",
        ], False
    is_well = crd is not None and any(o["metadata"]["name"] == ORCHESTRATOR for o in deployments)
    rows = [["WORKLOAD", "READY", "IMAGE"]]
    for workload in [*deployments, *daemonsets]:
        ready, wanted, is_done = progress(workload)
        is_well = is_well and is_done
        image = workload["spec"]["template"]["spec"]["containers"][0]["image"]
        rows.append([workload["metadata"]["name"], f"{ready}/{wanted}" + ("" if is_done else " ..."), image])
    lines += ["", *table(rows), "", *table(_nodes(nodes, pods))]
    if not nodes:
        lines += await checks.nodes(kubectl)
    lines += ["", *table(_groups(groups))] if crd is not None else ["", f"the CRD {CRD} is missing; apply again"]
    told = [f"{pod['metadata']['name']}: {why}" for pod in pods if (why := trouble(pod, {})) is not None]
    lines += ["", *told] if told else []
    lines += ["", f"certificates: {await _certificates(kubectl, now)}"]
    return lines, is_well and not told


def _nodes(nodes: Sequence[Any], pods: Sequence[Any]) -> list[list[str]]:
    agents = {
        pod["spec"].get("nodeName"): pod
        for pod in pods
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") == AGENT
    }
    rows = [["NODE", "GROUPS", "AGENT", "RESTARTS"]]
    for node in nodes:
        name = node["metadata"]["name"]
        pod = agents.get(name)
        groups = ",".join(checks.groups_of(node)) or "-"
        if pod is None:
            rows.append([name, groups, "none", "-"])
        else:
            rows.append([name, groups, "ready" if trouble(pod, {}) is None else "not ready", str(restarts(pod))])
    return rows


def _groups(groups: Sequence[Any]) -> list[list[str]]:
    rows = [["GROUP", "STATE", "HOLDER", "WAITING", "NODES"]]
    for group in groups:
        told = group.get("status", {})
        lease = told.get("lease") or {}
        rows.append(
            [
                group["metadata"]["name"],
                str(told.get("state", "-")),
                str(lease.get("job", "-")),
                str(told.get("queueLength", len(told.get("queue", ())))),
                ",".join(node["name"] for node in group.get("spec", {}).get("nodes", ())) or "-",
            ]
        )
    return rows


async def _certificates(kubectl: Kubectl, now: datetime) -> str:
    try:
        found = await existing_secrets(kubectl)
    except DeployError:
        return "not shown, this context may not read Secrets"
    told = []
    for name, secret in ((ORCHESTRATOR, ORCHESTRATOR_SECRET), (AGENT, AGENT_SECRET), ("authority", CA_SECRET)):
        end = secrets.expiry(found.get(secret))
        if end is None:
            told.append(f"{name} missing")
        else:
            hint = "" if end > now + secrets.RENEW_BEFORE else " (renew: --rotate-certs)"
            told.append(f"{name} until {end:%Y-%m-%d}{hint}")
    return ", ".join(told)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as what is in them, two spaces between."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
