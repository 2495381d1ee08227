"""Groups that come, change and go while the agent runs, and what becomes of the contexts in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot_agent_server.core.contexts import ContextState
from snapshot_agent_server.core.events import GroupsChanged
from snapshot_agent_server.core.groups import GroupClaim, Groups
from snapshot_agent_server.core.ids import AcceleratorId, ContextKey, GroupId, JobId, OperationId
from snapshot_agent_server.core.operations import Kind, Status
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.refusals import RefusalKind
from world import GPU, World

G, H = GroupId("g"), GroupId("h")
GPU0, GPU1 = GPU[G], GPU[H]
KEY = ContextKey(JobId("a"), G)


def claim(group: GroupId, *accelerators: AcceleratorId) -> GroupClaim:
    return GroupClaim(group, accelerators)


def tell(world: World, *claims: GroupClaim) -> None:
    world.post(GroupsChanged(claims))


def ask(world: World, kind: Kind, key: ContextKey = KEY) -> OperationId:
    """And all that it wants done is done."""
    operation = world.ask(kind, key)
    world.answer_all()
    return operation


def test_the_first_to_have_an_accelerator_keeps_it() -> None:
    groups = Groups()
    groups.change([claim(G, GPU0), claim(H, GPU1)], ())
    groups.change([claim(G, GPU0, GPU1), claim(H, GPU1)], ())
    assert groups.present == {G: (GPU0,), H: (GPU1,)}
    assert groups.claiming(GPU1) == (H, G)
    [problem] = groups.problems()
    assert "'g' does not get GPU-1, which group 'h' has" in problem


def test_a_group_that_gets_nothing_is_not_there() -> None:
    groups = Groups()
    groups.change([claim(G, GPU0, GPU1), claim(H, GPU0, GPU1)], ())
    assert list(groups) == [G]
    assert len(groups.problems()) == 1
    groups.change([claim(H, GPU0, GPU1)], ())
    assert groups.present == {H: (GPU0, GPU1)}
    assert groups.problems() == []


def test_what_is_the_same_changes_nothing() -> None:
    groups = Groups()
    assert groups.change([claim(G, GPU0)], ())
    assert not groups.change([claim(G, GPU0)], ())


CLAIMS = st.lists(
    st.builds(
        GroupClaim,
        st.sampled_from([GroupId(name) for name in "ghij"]),
        st.lists(st.sampled_from([AcceleratorId(f"GPU-{n}") for n in range(4)]), unique=True).map(tuple),
    ),
    unique_by=lambda claim: claim.group,
)


@given(st.lists(st.tuples(CLAIMS, st.sets(st.sampled_from([GroupId(name) for name in "ghij"])))))
def test_an_accelerator_is_in_one_group_and_stays_where_it_is_claimed(
    history: list[tuple[list[GroupClaim], set[GroupId]]],
) -> None:
    groups = Groups()
    for claims, in_use in history:
        before = {a: groups.of(a) for g in groups for a in groups.members(g)}
        in_use &= set(groups)
        groups.change(claims, in_use)
        members = [a for group in groups for a in groups.members(group)]
        assert len(members) == len(set(members))
        assert in_use <= set(groups), "what is in use stays"
        assert set(groups.present) <= {c.group for c in claims}
        claimed = {c.group: c.accelerators for c in claims}
        for accelerator, owner in before.items():
            if owner is not None and accelerator in claimed.get(owner, ()):
                assert groups.of(accelerator) == owner
        for accelerator in {a for c in claims for a in c.accelerators}:
            assert groups.of(accelerator) in claimed, "a claimed accelerator goes to nobody who does not claim it"


def test_groups_come_and_go_while_the_agent_runs() -> None:
    world = World(has_fixed_groups=False)
    assert ask(world, Kind.SNAPSHOT) not in world.results
    assert [r.refusal.kind for r in world.refused.values()] == [RefusalKind.UNKNOWN_GROUP]
    tell(world, claim(G, GPU0))
    target = world.run_in(world.pod("a"))
    operation = ask(world, Kind.SNAPSHOT)
    assert world.results[operation][-1].status is Status.COMPLETE
    assert target.state is DriverState.CHECKPOINTED
    world.sample()
    assert [view.groups for view in world.node.accelerator_views()] == [(G,), ()]
    assert [list(told.groups) for told in world.told_groups] == [[G]]


def test_what_is_saved_in_a_group_that_left_can_be_brought_back() -> None:
    world = World(has_fixed_groups=False)
    tell(world, claim(G, GPU0), claim(H, GPU1))
    target = world.run_in(world.pod("a"))
    ask(world, Kind.SNAPSHOT)
    tell(world, claim(H, GPU1))
    view = world.published[KEY].view
    assert view.state is ContextState.SAVED
    assert "left this node" in view.reason
    operation = ask(world, Kind.RESTORE)
    assert world.results[operation][-1].status is Status.COMPLETE
    assert world.published[KEY].view.state is ContextState.RUNNING
    world.kill(target.id.pid)
    while world.listings:
        world.list_members(world.listings[0])
    assert list(world.node.registry.groups) == [H]
    ask(world, Kind.SNAPSHOT)
    assert [r.refusal.kind for r in world.refused.values()] == [RefusalKind.UNKNOWN_GROUP]


def test_nothing_new_comes_to_a_group_that_left() -> None:
    world = World(has_fixed_groups=False)
    tell(world, claim(G, GPU0), claim(H, GPU1))
    uid = world.pod("a")
    first = world.run_in(uid)
    world.sample()
    tell(world, claim(H, GPU1))
    second, _ = world.run_in(uid), world.run_in(world.pod("b"))
    world.sample()
    assert world.published[KEY].view.pids == (first.id.pid, second.id.pid), "what is there stays whole"
    assert list(world.published) == [KEY]


def test_another_group_may_have_what_a_leaving_one_had() -> None:
    world = World(has_fixed_groups=False)
    tell(world, claim(G, GPU0))
    world.run_in(world.pod("a"))
    world.sample()
    tell(world, claim(H, GPU0, GPU1))
    world.sample()
    view = world.published[KEY].view
    assert view.state is ContextState.FAULTED
    assert "of group 'h'" in view.reason
    assert world.node.registry.groups.present == {H: (GPU0, GPU1)}


def test_a_pod_without_a_group_of_its_own_moves_with_its_accelerators() -> None:
    world = World(has_fixed_groups=False)
    tell(world, claim(G, GPU0))
    target = world.run_in(world.pod("a", None))
    world.sample()
    assert world.published[KEY].view.pids == (target.id.pid,)
    tell(world, claim(H, GPU0, GPU1))
    world.sample()
    assert world.published[ContextKey(JobId("a"), H)].view.pids == (target.id.pid,)
    assert world.gone == [KEY]
    assert list(world.node.registry.groups) == [H]


def test_after_a_restart_groups_are_as_they_were_until_the_cluster_speaks() -> None:
    world = World(has_fixed_groups=False)
    tell(world, claim(G, GPU0))
    world.run_in(world.pod("a"))
    ask(world, Kind.SNAPSHOT)
    world.crash(is_lazy_lost=False)
    assert world.published[KEY].view.state is ContextState.SAVED
    operation = ask(world, Kind.RESTORE)
    assert world.results[operation][-1].status is Status.COMPLETE
