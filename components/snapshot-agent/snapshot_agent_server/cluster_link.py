"""The link to the cluster, if there is one: what it needs, 25 MB and a third of a second, is imported then only."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from snapshot_agent_server.config import AgentConfig, ConfigError
from snapshot_agent_server.core.samples import DeviceSample

if TYPE_CHECKING:
    from snapshot_agent_server.kubernetes.cluster import Cluster, Told

API_PATIENCE_S = 5.0
"""How long a restarted agent waits for the API server, before it serves with what is on record."""


@asynccontextmanager
async def connected(config: AgentConfig, devices: Sequence[DeviceSample], told: Told) -> AsyncIterator[Cluster | None]:
    """None: not in a cluster. Raises: ConfigError."""
    if not config.kubernetes:
        yield None
        return
    try:
        from snapshot_agent_server.kubernetes.api import ApiError, ClusterApi
        from snapshot_agent_server.kubernetes.cluster import Cluster
        from snapshot_agent_server.kubernetes.watch import WatchLimits
    except ImportError as error:
        raise ConfigError(
            f"--kubernetes needs the package {error.name}; pip install 'timeslice-snapshot-agent[kubernetes]'"
        ) from error
    try:
        api = await ClusterApi.connected(os.environ)
    except ApiError as error:
        raise ConfigError(f"--kubernetes: {error}") from error
    try:
        yield Cluster(api, config.node, devices, told, limits=WatchLimits())
    finally:
        await api.close()
