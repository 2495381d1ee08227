"""Faults of the cluster itself, on a cluster of our own: each is undone behind its block."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest
from installation import Installation
from kube import Kube

API_SERVER_PORT = "6443"
BACK_S = 90.0


def own_cluster(made: Installation) -> Installation:
    """Skips the test on somebody else's: its kubelets and its API server are left alone."""
    if made.cluster is None:
        pytest.skip("somebody else's cluster")
    return made


def control_plane(made: Installation) -> str:
    [found] = made.kube.get("nodes", "-l", "node-role.kubernetes.io/control-plane")["items"]
    return str(found["metadata"]["name"])


def kill_kubelet(made: Installation, node: str) -> None:
    """kill -9; systemd starts another one."""
    made.on_node(node, "sh", "-c", "kill -9 $(pidof kubelet)")


def renewed(kube: Kube, lease: str, namespace: str) -> str:
    """When somebody last renewed a Lease."""
    return str(kube.get("lease", lease, "-n", namespace)["spec"]["renewTime"])


def wait_for_renewal(kube: Kube, lease: str, namespace: str, after: str, timeout_s: float = BACK_S) -> None:
    """Its holder is there again: it has renewed the Lease later than `after`."""
    kube.watch_until(
        lambda found: found["spec"]["renewTime"] > after, "lease", lease, "-n", namespace, timeout_s=timeout_s
    )


def kill_agent(made: Installation, node: str) -> None:
    """kill -9, without a word to the API server."""
    made.on_node(node, "sh", "-c", "kill -9 $(pgrep -f '[m] snapshot_agent_server')")


@contextlib.contextmanager
def api_server_away(made: Installation) -> Iterator[None]:
    """Killed, and not started again before the end of the block. Behind it, what depends on it works too."""
    node = control_plane(made)
    made.on_node(node, "sh", "-c", "systemctl stop kubelet && kill -9 $(pidof kube-apiserver)")
    try:
        yield
    finally:
        made.on_node(node, "systemctl", "start", "kubelet")
        wait_for_api_server(made.kube)
        # These gave up when they could not renew, and the kubelet starts others.
        for name in ("kube-controller-manager", "kube-scheduler"):
            wait_for_renewal(made.kube, name, "kube-system", renewed(made.kube, name, "kube-system"))


def wait_for_api_server(kube: Kube) -> None:
    """Nobody can watch a server that is away: it is asked until it says that it is ready."""
    deadline = time.monotonic() + BACK_S
    while not _answers(kube):
        assert time.monotonic() < deadline, f"the API server is not back after {BACK_S:.0f} s"
        time.sleep(0.3)


def _answers(kube: Kube) -> bool:
    asked = [kube.kubectl, "--context", kube.context, "get", "--raw", "/readyz", "--request-timeout=2s"]
    done = subprocess.run(asked, capture_output=True, check=False)
    return done.returncode == 0


@contextlib.contextmanager
def pods_cut_off(made: Installation, nodes: Sequence[str]) -> Iterator[None]:
    """Nothing passes between the nodes' pods and the API server, and nobody is told: as when a cable is pulled."""
    rules = [["FORWARD", "-p", "tcp", port, API_SERVER_PORT, "-j", "DROP"] for port in ("--dport", "--sport")]
    try:
        for node in nodes:
            for rule in rules:
                made.on_node(node, "iptables", "-I", *rule)
        yield
    finally:
        for node in nodes:
            for rule in rules:
                made.on_node(node, "iptables", "-D", *rule)


def forget_connections(made: Installation) -> None:
    """The API server is killed and comes back at once: whoever was connected is told nothing if he is cut off."""
    made.on_node(control_plane(made), "sh", "-c", "kill -9 $(pidof kube-apiserver)")
    wait_for_api_server(made.kube)
