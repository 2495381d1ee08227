"""Looking through /proc for processes in pods."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgroup_lines import ID, UID, v1, v2
from fake_proc import FakeProc
from snapshot_agent_server.core.ids import JobId, PodUid, ProcessId
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.processes import proc
from snapshot_agent_server.processes.pods import SETTLED_S, PodWalker

POD = Pod(PodUid(UID), "default/trainer", JobId("a"))
IN_POD = v1(f"/kubepods/besteffort/pod{UID}/{ID}")
ELSEWHERE = v2("/system.slice/sshd.service")


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "3600"])
    yield process.pid
    process.kill()
    process.wait()


def find(walker: PodWalker, *pods: Pod, known: frozenset[ProcessId] = frozenset()) -> list[tuple[PodUid, int]]:
    table = {pod.uid: pod for pod in pods or (POD,)}
    found = walker.find(table, lambda process: object() if process in known else None, set())  # type: ignore[arg-type,return-value]
    return [(uid, process.pid) for uid, process in found]


def test_a_process_in_a_pod_is_found_again_and_again_until_it_is_known(tmp_path: Path, sleeper: int) -> None:
    fake = FakeProc(tmp_path)
    fake.put(sleeper, IN_POD)
    walker = PodWalker(tmp_path)
    assert find(walker) == find(walker) == [(UID, sleeper)]
    facts = proc.facts(sleeper)
    assert facts is not None
    assert find(walker, known=frozenset({facts.id})) == []


def test_other_pods_and_the_agent_itself_are_none_of_its_business(tmp_path: Path, sleeper: int) -> None:
    fake = FakeProc(tmp_path)
    fake.put(sleeper, v2(f"/kubepods/pod{UID[::-1]}/{ID}"))
    fake.put(os.getpid(), IN_POD)
    assert find(PodWalker(tmp_path)) == []


def test_a_pod_that_becomes_known_later_is_found_without_another_look_at_its_processes(
    tmp_path: Path, sleeper: int
) -> None:
    fake = FakeProc(tmp_path)
    fake.put(sleeper, IN_POD)
    walker = PodWalker(tmp_path)
    other = Pod(PodUid("0" * 32), "default/other", JobId("b"))
    assert find(walker, other) == []
    fake.hide(sleeper)
    assert find(walker, POD) == [(UID, sleeper)]


def test_a_path_without_a_pod_is_known_by_its_container(tmp_path: Path, sleeper: int) -> None:
    fake = FakeProc(tmp_path)
    fake.put(sleeper, v2(f"/k8s.io/{ID}"))
    walker = PodWalker(tmp_path)
    assert find(walker) == []
    pod = Pod(POD.uid, POD.name, POD.job, containers=frozenset({ID}))
    assert find(walker, pod) == [(UID, sleeper)]


def test_a_process_that_a_runtime_moves_into_its_container_is_found_there(tmp_path: Path, sleeper: int) -> None:
    """It is started outside, and moved when it has been looked at already."""
    facts = proc.facts(sleeper)
    assert facts is not None
    started = facts.id.start_time / os.sysconf("SC_CLK_TCK")
    fake = FakeProc(tmp_path)
    fake.put(sleeper, ELSEWHERE)
    now = [started + 0.1]
    walker = PodWalker(tmp_path, boottime=lambda: now[0])
    assert find(walker) == []
    fake.put(sleeper, IN_POD)
    assert find(walker) == [(UID, sleeper)]
    now[0] = started + SETTLED_S + 1.0
    assert find(walker) == [(UID, sleeper)]


def test_nothing_is_read_twice_of_processes_that_have_settled(tmp_path: Path, sleeper: int) -> None:
    fake = FakeProc(tmp_path)
    fake.put(sleeper, ELSEWHERE)
    walker = PodWalker(tmp_path, boottime=lambda: 1e9)
    assert find(walker) == []
    fake.put(sleeper, IN_POD)  # it cannot be: only a look would tell
    assert find(walker) == []


def test_a_zombie_is_no_process(tmp_path: Path) -> None:
    """One whose parent does not reap it stays in /proc, in its cgroup."""
    process = subprocess.Popen(["sleep", "3600"])
    FakeProc(tmp_path).put(process.pid, IN_POD)
    walker = PodWalker(tmp_path)
    assert find(walker) == [(UID, process.pid)]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find(walker) == []
    process.wait()


def test_a_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    fake = FakeProc(tmp_path)
    fake.put(process.pid, IN_POD)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find(PodWalker(tmp_path)) == []
    process.wait()
    assert find(PodWalker(tmp_path)) == []


def test_the_real_proc_can_be_looked_through(sleeper: int) -> None:
    pods = {POD.uid: POD}
    assert PodWalker().find(pods, lambda process: None, set()) == []
    assert PodWalker().pod_of(sleeper, pods) is None
