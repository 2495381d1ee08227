"""What administrators do while jobs take turns: renew certificates, take timeslice out, put it in again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from installation import SYSTEM, Installation, install
from job_pod import Process, claim, in_namespace, new_claim_name, pod
from kube import Kube, Object

MIB = 1 << 20
NAMESPACE = "upgrade"
GROUP = "trainers"
OVERLAY = ("--overlay", "mock-gpu")

Jobs = dict[str, Process]


@pytest.fixture(autouse=True)
def ours(timeslice: Installation) -> None:
    """Somebody else's installation is not touched."""
    if timeslice.cluster is None:
        pytest.skip("only on a cluster of our own")


@pytest.fixture
def kube(timeslice: Installation) -> Iterator[Kube]:
    shared = new_claim_name()
    with in_namespace(timeslice.kube, NAMESPACE, claim(NAMESPACE, shared)) as kube:
        kube.apply(*(pod(NAMESPACE, name, name, GROUP, shared) for name in ("a", "b")))
        for name in ("a", "b"):
            kube.wait("pod", name, "condition=Ready", NAMESPACE)
        yield kube


@pytest.fixture
def jobs(kube: Kube) -> Iterator[Jobs]:
    """After their first turns: what a wrote is saved, and b's is on the device."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(Process(kube, NAMESPACE, name)) for name in ("a", "b")}
        for seed, process in enumerate(made.values()):
            process.call("join", None, None, None)
            process.call("acquire", 60)
            process.call("open", 0)
            process.call("alloc", "weights", 16 * MIB, seed)
            process.call("release")
        yield made


def digests(jobs: Jobs) -> list[str]:
    """A turn of each job; what each finds on the device."""
    found = []
    for process in jobs.values():
        process.call("acquire", 120)
        found.append(process.call("digest", "weights"))
        process.call("release")
    return found


def secrets(kube: Kube) -> dict[str, Object]:
    names = ("timeslice-ca", "timesliceorchestrator-tls", "snapshot-agent-tls")
    return {name: kube.get("secret", name, "-n", SYSTEM)["data"] for name in names}


def test_certificates_are_renewed_while_jobs_take_turns(timeslice: Installation, jobs: Jobs) -> None:
    kube = timeslice.kube
    written = digests(jobs)
    jobs["a"].call("acquire", 60)
    jobs["b"].begin("acquire", 300)
    before = secrets(kube)
    timeslice.deploy("apply", *OVERLAY, "--rotate-certs")
    after = secrets(kube)
    assert after["timeslice-ca"] == before["timeslice-ca"]
    assert all(after[name] != before[name] for name in after if name != "timeslice-ca")
    assert jobs["a"].call("digest", "weights") == written[0]
    jobs["a"].call("release")
    jobs["b"].result()
    assert jobs["b"].call("digest", "weights") == written[1]
    jobs["b"].call("release")
    assert digests(jobs) == written

    timeslice.deploy("apply", *OVERLAY, "--new-ca")
    assert secrets(kube)["timeslice-ca"] != before["timeslice-ca"]
    assert digests(jobs) == written
    timeslice.deploy("status")


def test_uninstalled_and_installed_again(timeslice: Installation, jobs: Jobs) -> None:
    kube = timeslice.kube
    written = digests(jobs)
    jobs["a"].call("acquire", 60)
    refused = timeslice.deploy_fails("delete", *OVERLAY)
    assert f"group {GROUP}: held by a" in refused, "it was deleted under a holder, without --force"
    jobs["a"].call("release")
    before = kube.get("timeslicegroup", GROUP)

    timeslice.deploy("delete", *OVERLAY)
    assert "NotFound" in fails(kube, "get", "namespace", SYSTEM)
    assert kube.get("timeslicegroup", GROUP)["metadata"]["uid"] == before["metadata"]["uid"]
    assert "not installed" in timeslice.deploy_fails("status")

    # What is saved is in the memory of the jobs' own processes, and outlives agents.
    install(timeslice)
    assert digests(jobs) == written
    ended = kube.get("timeslicegroup", GROUP)["status"]
    assert ended["epoch"] > before["status"]["epoch"]
    assert ended["token"] > before["status"]["token"]


def test_uninstalled_with_its_groups_and_installed_again(timeslice: Installation) -> None:
    kube = timeslice.kube
    timeslice.deploy("delete", *OVERLAY, "--groups")
    assert "NotFound" in fails(kube, "get", "customresourcedefinition", "timeslicegroups.timeslice.io")
    roles = kube.get("clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/part-of=timeslice")
    assert roles["items"] == []
    install(timeslice)
    kube.watch_until(lambda seen: seen.get("status", {}).get("state") == "Idle", "timeslicegroups", GROUP)
    timeslice.deploy("status")


def fails(kube: Kube, *arguments: str) -> str:
    """What kubectl says when it does not succeed."""
    done = subprocess.run([kube.kubectl, "--context", kube.context, *arguments], capture_output=True, text=True)
    assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
    return done.stderr
