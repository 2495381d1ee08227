"""The last test of a run: the cluster goes, and the machine is as it was."""

from __future__ import annotations

import pytest
from installation import Installation, remove
from machine_state import machine_state


def test_deleted_cluster_leaves_nothing_on_the_machine(
    cluster: Installation
) -> None:
    if cluster.cluster is None:
        pytest.skip("somebody else's cluster stays")
    containers = cluster.cluster.lab.container_ids()
    remove(cluster)
    assert cluster.cluster.lab.traces(containers) == []
    after = machine_state()
    assert after == cluster.before
