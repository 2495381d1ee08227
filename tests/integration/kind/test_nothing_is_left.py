"""The last test of a run: the cluster goes, and the machine is as it was."""

from __future__ import annotations

import subprocess

import pytest
from installation import Installation, remove
from machine_state import machine_state


def test_deleted_cluster_leaves_nothing_on_the_machine(cluster: Installation) -> None:
    if cluster.cluster is None or cluster.stays:
        pytest.skip("a cluster that was there before stays")
    engine = cluster.cluster.existing().engine
    containers = cluster.cluster.lab.container_ids()
    remove(cluster)
    assert cluster.cluster.lab.traces(containers) == []
    if engine == "docker":
        # kind keeps its Docker network, on purpose.
        label = f"label=io.x-k8s.kind.cluster={cluster.cluster.name}"
        left = subprocess.check_output(["docker", "ps", "--all", "--quiet", "--filter", label], text=True)
        assert left == ""
    else:
        assert machine_state() == cluster.before
