"""Whether this pod ends for good: an update of its DaemonSet must not take the driver away, its deletion must."""

from __future__ import annotations

import logging

from gpu_mock_kubernetes.api_server import ApiServer, ApiTrouble
from gpu_mock_kubernetes.logs import note

NOT_FOUND = 404
NO_LONGER_ALLOWED = (401, 403)

log = logging.getLogger("gpu_mock_kubernetes.lifetime")


async def is_deleted(api: ApiServer, namespace: str, name: str) -> bool:
    """Whether the DaemonSet is gone or about to go; asked at the end of a pod of it.

    Its permissions were enough when it was made, so that a refusal means that they have been deleted, as they are when
    all of the overlay is. Without an answer it is taken to be there: what is left behind can be removed later.
    """
    try:
        found = await api.daemon_set(namespace, name)
    except ApiTrouble as trouble:
        note(log, "asked for the DaemonSet", status=trouble.status, error=str(trouble))
        return trouble.status == NOT_FOUND or trouble.status in NO_LONGER_ALLOWED
    return "deletionTimestamp" in found["metadata"]
