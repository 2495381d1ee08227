"""Process trees, with real forks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from process_family import KEY, Family, wait_for_end
from snapshot_agent_server.core.refusals import Refusal
from snapshot_agent_server.core.trees import Tree, TreeClaim
from snapshot_agent_server.processes import cgroups, proc
from snapshot_agent_server.processes.trees import planted


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    family.close()


def sleeper(**options: Any) -> subprocess.Popen[bytes]:
    """A process whose exec is over: before that its environment cannot be read, and it is left for the next look."""
    process = subprocess.Popen(["sleep", "3600"], **options)
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        os.sched_yield()
    return process


@pytest.mark.parametrize("how", ["child", "daemon", "bare-daemon", "exec"])
def test_every_kind_of_descendant_is_found_in_the_first_look(family: Family, how: str) -> None:
    assert family.find() == set()
    pid = family.start(how)
    assert pid in family.find()
    assert family.find() == set(), "found once"


@pytest.mark.parametrize("way", ["ancestry", "cgroup"])
def test_a_child_whose_parent_ends_in_the_middle_of_a_look_is_found(
    family: Family, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when the look began, and when its parent's turn came, that was gone."""
    victim = family.start("child")
    late: list[int] = []
    facts = proc.facts

    def facts_and_fates(pid: int) -> proc.ProcessFacts | None:
        if pid == victim and not late:
            late.append(family.start("daemon"))
            family.kill(victim)
        return facts(pid)

    if way == "cgroup":
        family.tree = replace(family.tree, cgroup=":/tree")
        listed = {family.root, victim}
        monkeypatch.setattr(cgroups, "folder_of", lambda *a: Path("/"))
        monkeypatch.setattr(cgroups, "processes_in", lambda folder: listed | set(late))
        monkeypatch.setattr(cgroups, "cgroups_of", lambda pid: (":/tree",))
    monkeypatch.setattr(proc, "facts", facts_and_fates)
    assert family.find() == set(late)


def test_a_member_is_found_until_it_is_known(family: Family) -> None:
    """A sample that has found it, and waits for the driver, must not hide it from a Lock that comes meanwhile."""
    pid = family.start("daemon")
    for _ in range(2):
        found = family.walker.find({KEY: [family.tree]}, family.known.get, set())
        assert [process.pid for _, process in found] == [pid]


def test_without_a_keeper_a_marker_finds_orphans_but_for_those_that_dropped_it() -> None:
    family = Family(keeper=False)
    try:
        marked, bare = family.start("daemon"), family.start("bare-daemon")
        assert family.find() == {marked}
        assert bare not in {process.pid for process in family.known}
    finally:
        family.close()


def test_after_its_keeper_was_killed_a_trees_new_orphans_are_found_by_the_marker(family: Family) -> None:
    family.find()
    family.kill(family.process.pid)
    seen = family.start("daemon")
    assert family.find() == {seen}


def test_children_of_a_member_that_has_gone_are_found_where_the_walker_had_seen_it(family: Family) -> None:
    """The orphan falls to the keeper."""
    member = family.start("exec")
    family.find()
    family.kill(family.root)
    family.forget_dead()
    assert member in {process.pid for process in family.known}
    assert family.find() == set()


def test_another_users_forged_marker_brings_in_nobody(family: Family) -> None:
    try:
        forger = sleeper(user=65534, env={"TIMESLICE_TREE": family.marker})
    except OSError:
        pytest.skip("processes of other users may not be started here")
    same_user = sleeper(env={"TIMESLICE_TREE": family.marker})
    try:
        assert family.find() == {same_user.pid}
    finally:
        for process in (forger, same_user):
            process.kill()
            process.wait()


def test_strangers_are_left_alone_and_not_read_twice(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = sleeper()
    try:
        assert stranger.pid not in family.find()
        read: list[int] = []
        facts = proc.facts
        monkeypatch.setattr(proc, "facts", lambda pid, *a: read.append(pid) or facts(pid, *a))  # type: ignore[func-returns-value]
        family.find()
        assert stranger.pid not in read
    finally:
        stranger.kill()
        stranger.wait()


def test_a_pid_that_is_used_again_is_looked_at_again(family: Family) -> None:
    """As the walker sees it: the folder in /proc is another one."""
    family.find()
    pid = family.start("child")
    family.walker._judged[pid] = 1  # an earlier process with this pid was judged to be a stranger
    assert family.find() == {pid}


def test_the_agents_own_processes_are_never_members(family: Family) -> None:
    pid = family.start("child")
    assert family.walker.find({KEY: [family.tree]}, family.known.get, {pid}) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"root_pid": 2**22 + 1}, "no process"),
        ({"keeper_pid": 1_000_000_000}, "no process"),
        ({"marker": "f" * 32}, "marker"),
        ({"controllers": "no-such-controller"}, "cgroup_controllers"),
    ],
)
def test_a_tree_that_is_not_what_it_says_is_refused(family: Family, change: dict[str, object], what: str) -> None:
    refused = planted(replace(family.claim, **change), set())  # type: ignore[arg-type]
    assert isinstance(refused, Refusal)
    assert what in refused.text


def test_a_keeper_that_is_no_ancestor_is_refused(family: Family) -> None:
    stranger = sleeper()
    try:
        refused = planted(replace(family.claim, keeper_pid=stranger.pid), set())
        assert isinstance(refused, Refusal)
        assert "no ancestor" in refused.text
    finally:
        stranger.kill()
        stranger.wait()


# -- cgroups


def test_a_cgroup_that_the_agent_is_in_too_is_not_a_trees_own(family: Family) -> None:
    for own in cgroups.cgroups_of(os.getpid()):
        refused = planted(replace(family.claim, controllers=own.partition(":")[0]), set())
        assert isinstance(refused, Refusal), own
        assert "no cgroup of its own" in refused.text


def test_mounts_and_folders_of_both_versions_are_read_from_mountinfo(tmp_path: Path) -> None:
    unified, freezer = tmp_path / "cgroup", tmp_path / "v1 freezer"
    for folder in (unified / "jobs/a", freezer / "below"):
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        f"30 24 0:26 / {unified} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
        f"31 24 0:27 /above {str(freezer).replace(' ', chr(92) + '040')} rw - cgroup cgroup rw,freezer\n"
        f"32 24 0:28 / /elsewhere rw - tmpfs tmpfs rw\n"
    )
    found = cgroups.mounts(tmp_path)
    assert len(found) == 2
    assert cgroups.folder_of(":/jobs/a", found) == unified / "jobs/a"
    assert cgroups.folder_of("freezer:/above/below", found) == freezer / "below"
    assert cgroups.folder_of("freezer:/beside", found) is None, "not below what is mounted"
    assert cgroups.folder_of(":/jobs/none", found) is None
    assert cgroups.folder_of(":/../jobs/a", found) is None, "outside of the namespace"
    assert cgroups.folder_of("memory:/jobs/a", found) is None


def test_the_processes_of_a_cgroup_are_those_of_all_below_it_too(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "cgroup.procs").write_text("7\n")
    (tmp_path / "a/cgroup.procs").write_text("0\n")
    (tmp_path / "a/b/cgroup.procs").write_text("8\n9\n")
    assert cgroups.processes_in(tmp_path) == {7, 8, 9}
    assert cgroups.processes_in(tmp_path / "none") == set()


def own_cgroup() -> Path | None:
    """A new cgroup below this process's own, where that may be made: as root, with version 2."""
    for own in cgroups.cgroups_of(os.getpid()):
        if own.startswith(":"):
            folder = cgroups.folder_of(own, cgroups.mounts())
            made = folder / f"timeslice-test-{os.getpid()}" if folder is not None else None
            if made is not None:
                try:
                    made.mkdir()
                except OSError:
                    return None
                return made
    return None


def test_a_cgroup_finds_whoever_is_in_it_and_whatever_became_of_its_ancestors() -> None:
    folder = own_cgroup()
    if folder is None:
        pytest.skip("cgroups of version 2 may not be made here")
    family = Family(keeper=False)
    try:
        (folder / "cgroup.procs").write_text(str(family.root))
        tree = planted(TreeClaim(family.root, None, "", ""), set())
        assert isinstance(tree, Tree)
        family.tree = tree
        bare = family.start("bare-daemon")
        outside = sleeper(env={"TIMESLICE_TREE": family.marker})
        family.started.append(outside.pid)
        assert family.find() == {bare}
        outside.kill()
        outside.wait()
    finally:
        family.close()
        for pid in cgroups.processes_in(folder):
            wait_for_end(pid)
        folder.rmdir()
