"""Processes in pods: which context they belong to, as labels, groups and processes come and go."""

from __future__ import annotations

import pytest

from snapshot_agent_server.core.contexts import ContextState
from snapshot_agent_server.core.events import GroupsChanged, Registered
from snapshot_agent_server.core.groups import GroupClaim
from snapshot_agent_server.core.ids import ContextKey, GroupId, JobId
from snapshot_agent_server.core.operations import Kind, Status
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.trees import Tree
from world import GPU, World

G, H = GroupId("g"), GroupId("h")
A, B = JobId("a"), JobId("b")
KEY = ContextKey(A, G)


@pytest.fixture
def world() -> World:
    return World()


def save(world: World, key: ContextKey = KEY, token: int = 1) -> None:
    operation = world.ask(Kind.SNAPSHOT, key, token)
    world.answer_all()
    assert world.results[operation][-1].status is Status.COMPLETE


def pids(world: World, key: ContextKey = KEY) -> tuple[int, ...]:
    return world.published[key].view.pids if key in world.published else ()


def test_a_process_joins_its_jobs_context_when_it_uses_a_device(world: World) -> None:
    uid = world.pod("a")
    trainer, shell = world.run_in(uid), world.run_in(uid, DriverState.NONE)
    world.sample()
    assert pids(world) == (trainer.id.pid,)
    shell.state = DriverState.RUNNING
    world.sample()
    assert pids(world) == (trainer.id.pid, shell.id.pid)


def test_what_no_sample_has_shown_is_saved_with_the_rest(world: World) -> None:
    uid = world.pod("a")
    first = world.run_in(uid)
    world.sample()
    second = world.run_in(uid)
    third = world.run_in(world.pod("a"))
    save(world)
    assert {first.state, second.state, third.state} == {DriverState.CHECKPOINTED}


def test_a_driver_that_does_not_say_who_uses_cuda_is_asked_again(world: World) -> None:
    uid = world.pod("a")
    trainer, sidecar = world.run_in(uid), world.run_in(uid, DriverState.NONE)
    operation = world.ask(Kind.SNAPSHOT, KEY)
    world.list_members(world.listings[0], is_silent=True)
    world.answer_all()
    assert world.results[operation][-1].status is Status.COMPLETE
    assert trainer.state is DriverState.CHECKPOINTED
    world.sample()
    assert pids(world) == (trainer.id.pid,), f"{sidecar} uses no device"


def test_a_job_that_no_sample_has_shown_is_saved(world: World) -> None:
    only = world.run_in(world.pod("a"))
    save(world)
    assert only.state is DriverState.CHECKPOINTED


def test_what_starts_in_a_saved_jobs_pod_is_saved_too(world: World) -> None:
    uid = world.pod("a")
    world.run_in(uid)
    save(world)
    late = world.run_in(uid)
    world.sample()
    world.answer_all()
    assert late.state is DriverState.CHECKPOINTED
    assert world.published[KEY].view.state is ContextState.SAVED


def test_an_intruder_in_a_pod_is_locked(world: World) -> None:
    world.run_in(world.pod("b"))
    world.ask(Kind.UNLOCK, ContextKey(B, G))
    world.answer_all()
    world.sample()
    intruder = world.run_in(world.pod("a"))
    world.sample()
    world.answer_all()
    assert intruder.state is DriverState.LOCKED


def test_the_last_process_of_a_container_ends_the_context_though_others_run_on(world: World) -> None:
    uid = world.pod("a")
    trainer = world.run_in(uid)
    world.run_in(uid, DriverState.NONE)  # a sidecar
    world.sample()
    world.kill(trainer.id.pid)
    assert KEY not in world.gone, "somebody may be there whom no sample has shown"
    world.answer_all()
    assert world.gone == [KEY]


def test_a_container_that_is_restarted_makes_the_context_anew(world: World) -> None:
    uid = world.pod("a")
    first = world.run_in(uid)
    save(world)
    world.kill(first.id.pid)
    world.answer_all()
    assert world.gone == [KEY]
    again = world.run_in(uid)
    world.sample()
    assert pids(world) == (again.id.pid,)
    operation = world.ask(Kind.RESTORE, KEY)
    world.answer_all()
    assert world.results[operation][-1].status is Status.COMPLETE


def test_processes_outlive_their_pods_object(world: World) -> None:
    uid = world.pod("a")
    trainer = world.run_in(uid)
    world.sample()
    world.delete_pod(uid)
    assert pids(world) == (trainer.id.pid,)
    late = world.run_in(uid)
    world.sample()
    assert pids(world) == (trainer.id.pid, late.id.pid), "a pod that was force-deleted may go on for long"
    for target in (trainer, late):
        world.kill(target.id.pid)
    world.answer_all()
    assert world.gone == [KEY]
    assert not world.node.registry.pods.known
    assert world.disk.pods == ()


def test_a_pod_that_is_deleted_in_mid_snapshot_ends_the_operation_as_gone(world: World) -> None:
    uid = world.pod("a")
    target = world.run_in(uid)
    operation = world.ask(Kind.SNAPSHOT, KEY)
    world.list_members(world.listings[0])
    assert world.calls
    world.delete_pod(uid)
    world.kill(target.id.pid)
    world.answer_all()
    result = world.results[operation][-1]
    assert (result.status, result.is_gone) == (Status.FAILED, True)
    assert world.gone == [KEY]


def test_a_pod_of_no_job_stays_unmanaged_until_it_gets_a_label(world: World) -> None:
    uid = world.pod("a")
    del world.pods[uid]
    world.tell_pods(others=[uid])
    target = world.run_in(uid)
    world.sample()
    assert world.node.accelerator_views()[0].unmanaged_pids == (target.id.pid,)
    world.pod("a", uid=uid)
    world.sample()
    world.sample()
    assert pids(world) == (target.id.pid,)
    assert world.node.accelerator_views()[0].unmanaged_pids == ()


def test_a_running_process_goes_where_its_pods_labels_say(world: World) -> None:
    uid = world.pod("a")
    target = world.run_in(uid)
    world.sample()
    world.pod("b", uid=uid)
    world.sample()
    assert pids(world, ContextKey(B, G)) == (target.id.pid,)
    assert world.gone == [KEY]
    del world.pods[uid]
    world.tell_pods(others=[uid])
    world.sample()
    assert world.gone == [KEY, ContextKey(B, G)]


def test_a_saved_process_goes_when_it_is_back(world: World) -> None:
    uid = world.pod("a")
    target = world.run_in(uid)
    save(world)
    world.pod("b", uid=uid)
    world.sample()
    assert world.published[KEY].view.state is ContextState.SAVED
    world.ask(Kind.RESTORE, KEY)
    world.answer_all()
    world.sample()
    assert pids(world, ContextKey(B, G)) == (target.id.pid,)


def test_a_pod_that_names_no_group_belongs_to_that_of_its_accelerators(world: World) -> None:
    uid = world.pod("a", None)
    first, second = world.run_in(uid, group="g"), world.run_in(uid, group="h")
    world.sample()
    assert (pids(world), pids(world, ContextKey(A, H))) == ((first.id.pid,), (second.id.pid,))


def test_whose_group_nobody_has_said_is_not_missed_by_a_snapshot(world: World) -> None:
    target = world.run_in(world.pod("a", None), group="h")
    operation = world.ask(Kind.SNAPSHOT, ContextKey(A, H))
    world.list_members(world.listings[0], is_silent=True)
    assert operation not in world.results, "it may be in this context, and nobody has looked at it"
    world.pass_time(0.1)
    world.answer_all()
    assert world.results[operation][-1].status is Status.COMPLETE
    assert target.state is DriverState.CHECKPOINTED


def test_nor_if_its_pod_is_deleted_meanwhile(world: World) -> None:
    uid = world.pod("a", None)
    target = world.run_in(uid, group="h")
    operation = world.ask(Kind.SNAPSHOT, ContextKey(A, H))
    world.list_members(world.listings[0], is_silent=True)
    world.delete_pod(uid)
    world.pass_time(0.1)
    world.answer_all()
    assert world.results[operation][-1].status is Status.COMPLETE
    assert target.state is DriverState.CHECKPOINTED


def test_a_driver_that_never_says_whose_group_fails_the_snapshot(world: World) -> None:
    target = world.run_in(world.pod("a", None), group="h")
    operation = world.ask(Kind.SNAPSHOT, ContextKey(A, H))
    for _ in range(100):
        if world.listings:
            world.list_members(world.listings[0], is_silent=True)
        world.pass_time(5.0)
    [result] = world.results[operation]
    assert (result.status, result.is_rolled_back) == (Status.FAILED, True)
    assert "did not say which of the job's processes" in result.error
    assert target.state is DriverState.RUNNING


def test_its_group_is_remembered_while_its_accelerators_tell_nothing(world: World) -> None:
    uid = world.pod("a", None)
    target = world.run_in(uid, group="h")
    world.sample()
    save(world, ContextKey(A, H))
    world.sample()
    world.crash(is_lazy_lost=True)
    world.answer_all()
    world.sample()
    assert pids(world, ContextKey(A, H)) == (target.id.pid,)
    assert world.published[ContextKey(A, H)].view.state is ContextState.SAVED


def test_on_a_node_with_one_group_nothing_needs_to_be_said() -> None:
    world = World(has_fixed_groups=False)
    world.post(GroupsChanged((GroupClaim(G, (GPU[G],)),)))
    uid = world.pod("a", None)
    target = world.run_in(uid)
    world.sample()
    assert pids(world) == (target.id.pid,)


def test_a_pod_waits_for_its_group(world: World) -> None:
    """The pod's label is known before the group, or the other way round."""
    world = World(has_fixed_groups=False)
    target = world.run_in(world.pod("a"))
    world.sample()
    assert pids(world) == ()
    world.post(GroupsChanged((GroupClaim(G, (GPU[G],)),)))
    world.sample()
    assert pids(world) == (target.id.pid,)


def test_after_a_restart_all_is_known_before_the_cluster_has_said_anything(world: World) -> None:
    uid = world.pod("a")
    known = world.run_in(uid)
    save(world)
    unseen = world.run_in(world.pod("b"))
    world.crash(is_lazy_lost=False)
    assert world.published[KEY].view.state is ContextState.SAVED
    assert pids(world) == (known.id.pid,)
    assert pids(world, ContextKey(B, G)) == (unseen.id.pid,)


def test_a_restart_while_records_are_under_way_loses_no_process(world: World) -> None:
    uid = world.pod("a")
    world.sample()
    world.crash(is_lazy_lost=False)
    target = world.run_in(uid)
    world.sample()
    world.crash(is_lazy_lost=True)  # its record was not on disk yet: the pod's is, and /proc has the rest
    assert pids(world) == (target.id.pid,)


def test_a_pod_that_comes_before_the_listing_is_looked_through(world: World) -> None:
    world.post(Registered(world.number(), KEY, (world.observed(root := world.start(state=DriverState.NONE)),),
                          Tree(root.id, uid=0, marker="tree")))
    operation = world.ask(Kind.SNAPSHOT, KEY)
    target = world.run_in(world.pod("a"))
    world.answer_all()
    assert world.results[operation][-1].status is Status.COMPLETE
    assert target.state is DriverState.CHECKPOINTED
