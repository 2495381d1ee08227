"""Contexts that are process trees, in virtual time, and the rules of who is a member."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot_agent_server.core.contexts import ContextState
from snapshot_agent_server.core.events import Registered
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId, ProcessId
from snapshot_agent_server.core.operations import Kind, Status
from snapshot_agent_server.core.outcomes import DriverState, Verb
from snapshot_agent_server.core.trees import Candidate, Tree, members
from world import Target, World

G = GroupId("g")
KEY = ContextKey(JobId("a"), G)
OTHER = ContextKey(JobId("b"), G)


@pytest.fixture
def world() -> World:
    return World()


def plant(world: World, key: ContextKey = KEY, state: DriverState = DriverState.RUNNING) -> Target:
    """A tree of one process, registered."""
    root = world.start(key.group, state)
    world.members[root.id.pid] = key
    world.post(Registered(world.number(), key, (world.observed(root),), Tree(root.id, uid=1000, marker="m" * 16)))
    return root


def fork(world: World, state: DriverState = DriverState.RUNNING, key: ContextKey = KEY) -> Target:
    """A child that nobody has seen yet."""
    child = world.start(key.group, state)
    world.members[child.id.pid] = key
    return child


def test_a_child_born_a_moment_ago_is_saved_with_the_others(world: World) -> None:
    root = plant(world)
    child = fork(world)
    operation = world.ask(Kind.SNAPSHOT, KEY)
    assert not world.calls, "nothing is locked before the tree was looked through"
    world.answer_all()
    assert (root.state, child.state) == (DriverState.CHECKPOINTED, DriverState.CHECKPOINTED)
    assert world.results[operation][-1].status is Status.COMPLETE
    assert world.published[KEY].view.pids == (root.id.pid, child.id.pid)


def test_members_without_cuda_cost_no_driver_calls_of_their_own(world: World) -> None:
    plant(world)
    for _ in range(20):
        fork(world, DriverState.NONE)
    world.sample()
    world.ask(Kind.SNAPSHOT, KEY)
    [wanted] = world.listings
    assert len(wanted.ask) == 20, "one question for all of them"
    world.list_members(wanted)
    assert [call.verb for call in world.calls] == [Verb.LOCK]
    world.answer_all()
    assert world.published[KEY].view.state is ContextState.SAVED


def test_a_member_that_started_cuda_unseen_is_saved(world: World) -> None:
    plant(world)
    loader = fork(world, DriverState.NONE)
    world.sample()
    loader.state = DriverState.RUNNING
    world.ask(Kind.SNAPSHOT, KEY)
    world.answer_all()
    assert loader.state is DriverState.CHECKPOINTED


def test_a_driver_that_does_not_say_who_uses_cuda_is_asked_again(world: World) -> None:
    plant(world)
    child = fork(world)
    world.ask(Kind.SNAPSHOT, KEY)
    world.list_members(world.listings[0], is_silent=True)
    assert (Verb.STATE, child.id.pid) in [(call.verb, call.process.pid) for call in world.calls]
    world.answer_all()
    assert child.state is DriverState.CHECKPOINTED


def test_a_child_that_appears_during_the_lock_is_locked_by_the_agent(world: World) -> None:
    plant(world)
    world.ask(Kind.UNLOCK, KEY)
    world.answer_all()
    world.ask(Kind.LOCK, KEY)
    world.list_members(world.listings[0])
    child = fork(world)  # after the listing, before the driver has locked its parent
    world.answer_all()
    assert child.state is DriverState.RUNNING
    world.sample()
    world.answer_all()
    assert child.state is DriverState.LOCKED
    assert world.published[KEY].view.locked


def test_a_child_that_comes_when_its_tree_is_saved_is_saved_too(world: World) -> None:
    root = plant(world)
    world.ask(Kind.SNAPSHOT, KEY)
    world.answer_all()
    late = fork(world)
    world.sample()
    world.answer_all()
    assert late.state is DriverState.CHECKPOINTED
    assert world.published[KEY].view.state is ContextState.SAVED
    world.ask(Kind.RESTORE, KEY)
    world.answer_all()
    assert (root.state, late.state) == (DriverState.RUNNING, DriverState.RUNNING)


def test_a_tree_whose_known_processes_end_lives_on_in_a_child_that_nobody_saw(world: World) -> None:
    root = plant(world)
    child = fork(world)
    world.kill(root.id.pid)
    assert KEY not in world.gone
    world.answer_all()
    assert KEY not in world.gone
    assert world.published[KEY].view.pids == (child.id.pid,)


def test_a_look_from_before_a_birth_does_not_end_a_tree(world: World) -> None:
    """A sample looked and waits for the driver; then the only process has a child and ends."""
    root = plant(world)
    world.begin_look()
    child = fork(world)
    world.kill(root.id.pid)
    world.end_look()
    assert KEY not in world.gone
    world.answer_all()
    assert world.published[KEY].view.pids == (child.id.pid,)


def test_a_tree_without_members_is_gone_and_forgotten(world: World) -> None:
    root = plant(world)
    world.kill(root.id.pid)
    world.answer_all()
    assert world.gone == [KEY]
    world._flush()
    assert (world.disk.trees, world.disk.processes) == ([], {})
    stranger = world.start()
    world.members[stranger.id.pid] = KEY  # what the tree would have had
    world.sample()
    assert world.node.registry.owner(stranger.id) is None


def test_after_a_restart_members_that_were_never_on_record_are_known(world: World) -> None:
    plant(world)
    child = fork(world)
    world.sample()
    world.crash(is_lazy_lost=True)
    assert world.node.registry.owner(child.id) == KEY
    world.ask(Kind.SNAPSHOT, KEY)
    world.answer_all()
    assert child.state is DriverState.CHECKPOINTED


def test_a_restart_in_the_middle_of_the_listing_lists_again(world: World) -> None:
    root = plant(world)
    operation = world.ask(Kind.SNAPSHOT, KEY)
    world.crash(is_lazy_lost=True)
    world.answer_all()
    assert root.state is DriverState.CHECKPOINTED
    assert world.results[operation][-1].status is Status.COMPLETE


def test_a_listing_that_never_comes_fails_the_operation_at_its_deadline(world: World) -> None:
    root = plant(world)
    operation = world.ask(Kind.SNAPSHOT, KEY)
    world.listings.clear()
    world.pass_time(121.0)
    result = world.results[operation][-1]
    assert (result.status, result.is_rolled_back) == (Status.FAILED, True)
    assert "could not be listed" in result.error
    assert root.state is DriverState.RUNNING


def test_a_tree_that_is_locked_is_listed_before_the_next_operation_too(world: World) -> None:
    plant(world)
    world.ask(Kind.LOCK, KEY)
    world.answer_all()
    child = fork(world)
    world.ask(Kind.SNAPSHOT, KEY)
    world.answer_all()
    assert child.state is DriverState.CHECKPOINTED


def test_a_workload_that_closes_does_not_take_children_that_nobody_has_seen_with_it(world: World) -> None:
    app, root = world.app("a", is_seen=False), plant(world)
    child = fork(world)
    world.kill(root.id.pid)
    world.disconnect(app, is_closed=True)
    world.apps.remove(app)
    assert KEY not in world.gone, "the tree is being looked through"
    world.answer_all()
    assert world.published[KEY].view.pids == (child.id.pid,)
    world.kill(child.id.pid)
    world.answer_all()
    assert world.gone == [KEY]


def test_a_workload_that_comes_while_the_tree_is_looked_through_stays(world: World) -> None:
    root = plant(world)
    world.kill(root.id.pid)
    app = world.app("a")
    world.answer_all()
    assert world.gone == []
    assert app.connection is not None


def test_whoever_names_a_member_that_the_agent_found_has_it(world: World) -> None:
    """A sampler below `timeslice run` that registers itself for another group."""
    plant(world)
    sampler = fork(world, DriverState.NONE)
    world.sample()
    elsewhere = ContextKey(JobId("a"), GroupId("h"))
    sampler.group = elsewhere.group
    number = world.number()
    world.post(Registered(number, elsewhere, (world.observed(sampler),)))
    assert number in world.accepted
    assert world.node.registry.owner(sampler.id) == elsewhere
    world.sample()
    assert world.node.registry.owner(sampler.id) == elsewhere, "the tree does not take it back"


def test_a_member_with_device_memory_is_not_given_away(world: World) -> None:
    plant(world)
    child = fork(world)
    world.sample()
    number = world.number()
    world.post(Registered(number, OTHER, (world.observed(child),)))
    assert "already" in world.refused[number].refusal.text


# -- who is a member

ROOT = Tree(ProcessId(100, 1000), uid=1000, keeper=ProcessId(90, 900), marker="the marker of a tree")


def find(*candidates: Candidate, tree: Tree = ROOT, known: dict[ProcessId, ContextKey] | None = None) -> set[int]:
    owners = {tree.root: KEY} if known is None else known
    return {process.pid for process in members(candidates, {KEY: [tree]}, owners.get)}


def child(pid: int, parent: ProcessId | None, **fields: object) -> Candidate:
    return Candidate(ProcessId(pid, pid * 10), 1000, parent, **fields)  # type: ignore[arg-type]


def test_children_grandchildren_and_orphans_that_fell_to_the_keeper_are_members() -> None:
    first = child(101, ROOT.root)
    second = child(102, first.id)
    orphan = child(103, ROOT.keeper)
    stranger = child(104, ProcessId(1, 1))
    assert find(stranger, second, orphan, first) == {101, 102, 103}


def test_a_marker_finds_who_has_lost_all_its_ancestors() -> None:
    tree = replace(ROOT, keeper=None)
    init = ProcessId(1, 1)
    assert find(child(101, init, marker=tree.marker), child(102, init, marker="another"), tree=tree) == {101}


def test_nobody_older_than_the_root_is_a_member() -> None:
    """A pid that was used again shows as its start time."""
    old = Candidate(ProcessId(99, 999), 1000, ROOT.keeper, marker=ROOT.marker)
    assert find(old) == set()


def test_a_parent_whose_pid_was_used_again_is_a_stranger() -> None:
    impostor = ProcessId(ROOT.root.pid, 5000)
    assert find(child(501, impostor)) == set()


def test_a_marker_forged_by_another_user_is_worth_nothing() -> None:
    forged = Candidate(ProcessId(101, 1010), 1001, ProcessId(1, 1), marker=ROOT.marker)
    assert find(forged) == set()
    of_root = replace(ROOT, uid=0)
    assert find(forged, tree=of_root) == set(), "nor does root's tree take in others' processes by their word"


def test_a_process_that_changed_its_user_is_a_member_of_roots_trees_only() -> None:
    changed = Candidate(ProcessId(101, 1010), 0, ROOT.root)
    assert find(changed) == set()
    dropped = Candidate(ProcessId(101, 1010), 1001, ROOT.root)
    assert find(dropped, tree=replace(ROOT, uid=0)) == {101}


def test_a_cgroup_alone_decides_where_there_is_one() -> None:
    tree = replace(ROOT, cgroup=":/jobs/run-1")
    inside = child(101, ProcessId(1, 1), cgroups=("5:pids:/", ":/jobs/run-1"))
    below = child(102, ProcessId(1, 1), cgroups=(":/jobs/run-1/inner",))
    beside = child(103, ROOT.root, cgroups=(":/jobs/run-10",), marker=ROOT.marker)
    assert find(inside, below, beside, tree=tree) == {101, 102}


def test_the_innermost_of_two_cgroups_and_the_nearest_of_two_keepers_decide() -> None:
    outer = replace(ROOT, cgroup=":/a")
    inner = Tree(ProcessId(200, 2000), uid=1000, cgroup=":/a/b")
    candidates = [child(300, None, cgroups=(":/a/b/c",)), child(301, None, cgroups=(":/a/c",))]
    found = members(candidates, {KEY: [outer], OTHER: [inner]}, {}.get)
    assert {process.pid: key for process, key in found.items()} == {300: OTHER, 301: KEY}
    run = ProcessId(150, 1500)  # a member of the outer tree that keeps a tree of its own
    nested = Tree(ProcessId(200, 2000), uid=1000, keeper=run)
    owners = {ROOT.root: KEY, run: KEY, nested.root: OTHER}
    found = members([child(300, run), child(301, nested.root), child(302, ROOT.root)],
                    {KEY: [ROOT], OTHER: [nested]}, owners.get)  # fmt: skip
    assert {process.pid: key for process, key in found.items()} == {300: OTHER, 301: OTHER, 302: KEY}


def test_a_line_of_ten_thousand_new_processes_is_followed() -> None:
    line = [child(101, ROOT.root)]
    for pid in range(102, 10_102):
        line.append(child(pid, line[-1].id))
    assert len(find(*reversed(line))) == 10_001


@dataclass
class Living:
    id: ProcessId
    parent: ProcessId
    is_in_tree: bool
    marker: str


@settings(deadline=None)
@given(st.data())
def test_with_a_keeper_every_descendant_is_found_and_nobody_else(data: st.DataObject) -> None:
    """Forks, exits (orphans fall to the keeper, outside the tree to init), dropped environments, looks in between."""
    init = ProcessId(1, 1)
    assert ROOT.keeper is not None
    living = {
        ROOT.root.pid: Living(ROOT.root, ROOT.keeper, True, ROOT.marker),
        50: Living(ProcessId(50, 1), init, False, ""),
    }
    known = {ROOT.root: KEY}
    pid = 200
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["fork", "fork", "exit", "look"])):
            case "fork" if living:
                parent = data.draw(st.sampled_from(sorted(living)))
                pid += 1
                keeps = data.draw(st.booleans())
                mark = living[parent].marker if keeps else ""
                living[pid] = Living(ProcessId(pid, pid * 10), living[parent].id, living[parent].is_in_tree, mark)
            case "exit" if living:
                gone = living.pop(data.draw(st.sampled_from(sorted(living))))
                known.pop(gone.id, None)
                for one in living.values():
                    if one.parent == gone.id:
                        one.parent = ROOT.keeper if one.is_in_tree else init
            case _:
                candidates = [
                    Candidate(o.id, 1000, o.parent, marker=o.marker) for o in living.values() if o.id not in known
                ]
                known.update(members(candidates, {KEY: [ROOT]}, known.get))
                truth = {one.id for one in living.values() if one.is_in_tree}
                assert set(known) == truth
