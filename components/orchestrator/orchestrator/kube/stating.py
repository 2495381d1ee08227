"""Stating a group to the API server: one server-side apply, for whoever finds that it is not stated as it should be."""

from orchestrator.kube import groups
from orchestrator.kube.api import APPLY, Object, Requests


async def state(api: Requests, manifest: Object) -> Object:
    """Apply what `groups.manifest` made; the object as it is then. Errors: those of `ApiServer.request`."""
    return await api.request(
        "PATCH", f"{groups.COLLECTION}/{manifest['metadata']['name']}", manifest,
        query={"fieldManager": groups.FIELD_MANAGER, "force": "true"}, content_type=APPLY)
