"""One cluster for the whole run, made by the first test that needs it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from installation import Installation, collect_logs, install, make_cluster, remove
from job_pod import delete_namespaces

from timeslice_kind.errors import KindError

CLUSTER = pytest.StashKey[Installation]()


def pytest_configure() -> None:
    # Bazel ends a test that takes too long with SIGTERM, and gives it some seconds: enough to delete the cluster.
    # Not sys.exit: that fails the test under way, and the next one begins.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", returncode=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect logs when a test has failed, before its fixtures take away what it looked at."""
    report = yield
    if report.failed and report.when != "teardown" and CLUSTER in item.config.stash:
        outputs = Path(os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR") or "kind-logs").absolute()
        try:
            collect_logs(item.config.stash[CLUSTER], outputs / item.name)
        except (OSError, subprocess.SubprocessError, AssertionError, KindError) as error:
            # The cluster may be gone; what the test has found must not go with it.
            report.sections.append(("logs of the cluster", f"not collected: {error}"))
    return report


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Installation]:
    """The cluster with the images, and nothing installed. It is deleted at the end."""
    made = make_cluster()
    pytestconfig.stash[CLUSTER] = made
    try:
        yield made
    finally:
        if made.cluster is None or made.stays:
            delete_namespaces(made.kube)
        remove(made)


@pytest.fixture(scope="session")
def timeslice(cluster: Installation) -> Installation:
    """The cluster with overlay mock-gpu, its nodes labelled."""
    install(cluster)
    return cluster
