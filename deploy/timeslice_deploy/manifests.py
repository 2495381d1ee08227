"""An overlay as objects: built by kustomize, with a registry's images and the certificates' digests put in."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from timeslice_deploy import kubectl
from timeslice_deploy.errors import BadUsage, DeployError
from timeslice_deploy.names import CERTIFICATE_ANNOTATION

Object = dict[str, Any]

IMAGE_PREFIX = "timeslice-"
"""What the last part of our images' names begins with; others are left as they are."""

WORKLOADS = ("Deployment", "DaemonSet")
FIRST = ("Namespace", "CustomResourceDefinition", "PriorityClass", "ServiceAccount")


def kustomize_folder(env: Mapping[str, str]) -> Path:
    """deploy/kustomize of the working tree under `bazel run`, else the one beside this program."""
    tree = env.get("BUILD_WORKSPACE_DIRECTORY")
    return Path(tree) / "deploy/kustomize" if tree else Path(__file__).parents[1] / "kustomize"


def overlays(folder: Path) -> list[str]:
    """The names that `--overlay` takes."""
    return sorted(path.parent.name for path in folder.glob("overlays/*/kustomization.yaml"))


async def build(program: str, folder: Path, overlay: str) -> list[Object]:
    """The objects of an overlay in the order in which they can be applied.

    `overlay`: a name out of overlays/, or the path of a kustomization of the user's own.
    Raises: BadUsage for one that is not there; DeployError if kustomize cannot build it.
    """
    if os.sep in overlay:
        where = os.environ.get("BUILD_WORKING_DIRECTORY", "")  # where the user stands under `bazel run`
        path = Path(where, overlay)
        if not (path / "kustomization.yaml").is_file():
            raise BadUsage(f"--overlay {overlay}: {path} has no kustomization.yaml")
        return parse(await kubectl.build(program, str(path)))
    if overlay not in overlays(folder):
        raise BadUsage(
            f"no overlay {overlay!r}; there are {', '.join(overlays(folder))}, or give the path of your own as ./FOLDER"
        )
    with tempfile.TemporaryDirectory(prefix="timeslice-deploy-") as copied:
        # Where Bazel runs this, the files are links, which kustomize does not follow out of their folder.
        shutil.copytree(folder, f"{copied}/kustomize")
        return parse(await kubectl.build(program, f"{copied}/kustomize/overlays/{overlay}"))


def parse(text: str) -> list[Object]:
    """The objects of a YAML stream, those that others need first."""
    try:
        objects = [document for document in yaml.safe_load_all(text) if document]
    except yaml.YAMLError as error:
        raise DeployError(f"kustomize built what is not YAML: {error}") from error
    return sorted(objects, key=lambda o: FIRST.index(o["kind"]) if o["kind"] in FIRST else len(FIRST))


def dump(objects: Iterable[Object]) -> str:
    """As YAML, for kubectl's stdin."""
    return yaml.safe_dump_all(list(objects), sort_keys=False)


def with_registry(objects: Sequence[Object], registry: str) -> list[Object]:
    """The same with our images from this registry; their tags stay."""
    changed = copy.deepcopy(list(objects))
    for container in containers(changed):
        name = container["image"].rpartition("/")[2]
        if name.startswith(IMAGE_PREFIX):
            container["image"] = f"{registry.rstrip('/')}/{name}"
    return changed


def with_certificates(objects: Sequence[Object], digests: Mapping[str, str]) -> list[Object]:
    """The same with a digest on the pod template of each workload that is named: a new one restarts its pods."""
    changed = copy.deepcopy(list(objects))
    for workload in workloads(changed):
        digest = digests.get(workload["metadata"]["name"])
        if digest is not None:
            metadata = workload["spec"]["template"].setdefault("metadata", {})
            metadata.setdefault("annotations", {})[CERTIFICATE_ANNOTATION] = digest
    return changed


def workloads(objects: Iterable[Object]) -> list[Object]:
    """What runs pods."""
    return [o for o in objects if o["kind"] in WORKLOADS]


def containers(objects: Iterable[Object]) -> list[dict[str, Any]]:
    """All containers of all workloads, init containers too; the objects' own, not copies."""
    found: list[dict[str, Any]] = []
    for workload in workloads(objects):
        pod = workload["spec"]["template"]["spec"]
        found += pod.get("initContainers", []) + pod["containers"]
    return found


def images(objects: Iterable[Object]) -> list[str]:
    """The images that nodes will ask for."""
    return sorted({container["image"] for container in containers(objects)})


def described(o: Object) -> str:
    """As kubectl names it."""
    return f"{o['kind'].lower()}/{o['metadata']['name']}"
