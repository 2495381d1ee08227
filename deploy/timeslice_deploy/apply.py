"""`:apply`: checks, certificates, server-side apply, and a wait until all of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timeslice_deploy import certificates, checks, secrets, waiting
from timeslice_deploy.errors import DeployError
from timeslice_deploy.kubectl import Kubectl
from timeslice_deploy.manifests import Object, described, dump, images, with_certificates
from timeslice_deploy.names import AGENT_SECRET, CA_SECRET, FIELD_MANAGER, NAMESPACE, ORCHESTRATOR_SECRET
from timeslice_deploy.waiting import Say

FIRST = ("Namespace", "CustomResourceDefinition")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the flags say."""

    rotate_certificates: bool
    new_ca: bool
    force_conflicts: bool
    timeout_s: float


async def apply(kubectl: Kubectl, objects: Sequence[Object], wanted: Wanted, say: Say) -> None:
    """Bring the cluster to what `objects` say. Raises: DeployError; what was applied until then stays."""
    version = await checks.server_version(kubectl)
    await checks.rights(kubectl, objects)
    await checks.crd(kubectl, objects)
    say(f"cluster: {kubectl.context}, Kubernetes {version}")
    for image in images(objects):
        say(f"image:   {image}")

    first = [o for o in objects if o["kind"] in FIRST]
    await send(kubectl, first, wanted.force_conflicts, say)
    crds = [o["metadata"]["name"] for o in first if o["kind"] == "CustomResourceDefinition"]
    await waiting.established(kubectl, crds, wanted.timeout_s)

    plan = await certificate_plan(kubectl, wanted.rotate_certificates, wanted.new_ca)
    for line in plan.says:
        say(f"certificates: {line}")
    if plan.write:
        await send(kubectl, plan.write, True, lambda _: None)
    rest = [o for o in with_certificates(objects, plan.digests) if o["kind"] not in FIRST]
    await send(kubectl, rest, wanted.force_conflicts, say)
    await waiting.running(kubectl, rest, wanted.timeout_s, say)
    for warning in [*plan.warnings, *await checks.nodes(kubectl)]:
        say(f"warning: {warning}")


async def certificate_plan(kubectl: Kubectl, rotate: bool, new_ca: bool) -> secrets.Plan:
    """What the Secrets in the cluster should become."""
    return secrets.plan(await existing_secrets(kubectl), certificates.now(), rotate=rotate, new_ca=new_ca)


async def existing_secrets(kubectl: Kubectl) -> dict[str, Any]:
    """Ours, by name."""
    ours = (CA_SECRET, ORCHESTRATOR_SECRET, AGENT_SECRET)
    found = await kubectl.items("secrets", "--namespace", NAMESPACE)
    return {secret["metadata"]["name"]: secret for secret in found if secret["metadata"]["name"] in ours}


async def send(kubectl: Kubectl, objects: Sequence[Object], force_conflicts: bool, say: Say) -> None:
    """Server-side apply; a line for each object that changed. Raises: DeployError."""
    if not objects:
        return
    force = ["--force-conflicts"] if force_conflicts else []
    arguments = ["apply", "--server-side", f"--field-manager={FIELD_MANAGER}", *force, "-f", "-"]
    answer = await kubectl.call(*arguments, stdin=dump(objects))
    if answer.status != 0:
        if "conflict" in answer.err and not force_conflicts:
            raise DeployError(
                f"somebody else has set what this would change:\n{answer.err.strip()}\nTake it over with"
                " --force-conflicts, or put the change into an overlay of your own"
            )
        names = ", ".join(described(o) for o in objects[:3])
        raise kubectl.failure(answer, ("apply", names))
    for line in answer.out.splitlines():
        say(f"  {line.removesuffix(' serverside-applied')}")
