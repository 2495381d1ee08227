"""A process tree as a context: real forks, a fake driver."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from node_under_test import GPU, GPU1, MIB, Client, FakeNode
from process_family import Family, wait_for_end
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.core.outcomes import DriverState, Verb


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    family.close()


async def plant(client: Client, family: Family, **changes: object) -> None:
    fields = {"root_pid": family.root, "keeper_pid": family.process.pid, "marker": family.marker, **changes}
    await client.register_workload(pb.RegisterWorkload(job_id="a", group="g", tree=pb.ProcessTree(**fields)))


def states(node: FakeNode, *pids: int) -> set[DriverState]:
    return {node.driver.processes[pid].state for pid in pids}


async def test_a_tree_is_saved_with_a_child_that_no_sample_has_shown(node: FakeNode, family: Family) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        node.driver.add(family.root, {GPU: 4 * MIB})
        await plant(client, family)
        children = [family.start(how) for how in ("child", "daemon", "bare-daemon", "exec")]
        for pid in children:
            node.driver.add(pid, {GPU: MIB})
        saved = await client.snapshot("a", id="s1")
        assert saved.status == pb.OPERATION_STATUS_COMPLETE
        assert saved.snapshot_device_bytes == 8 * MIB
        assert states(node, family.root, *children) == {DriverState.CHECKPOINTED}
        await client.restore("a", id="r1")
        assert states(node, family.root, *children) == {DriverState.RUNNING}


async def test_members_without_cuda_are_neither_locked_nor_asked_one_by_one(node: FakeNode, family: Family) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        node.driver.add(family.root, {GPU: 4 * MIB})
        await plant(client, family)
        loaders = [family.start("child") for _ in range(3)]
        locked = await client.lock("a")
        assert list(locked.locked_pids) == [family.root]
        assert {pid for _, pid in node.driver.calls} == {family.root}
        assert set(loaders) <= set((await client.until(lambda: client.jobs["a", "g"])).pids)


async def test_a_child_that_starts_cuda_in_anothers_turn_is_locked(node: FakeNode, family: Family) -> None:
    """Both found by a sample: that the child is a member, and later that it uses CUDA."""
    async with node.up() as client:
        await plant(client, family)
        other = node.process(MIB)
        await client.register("b", "g", other)
        await client.unlock("b", fencing_token=1)
        child = family.start("daemon")
        await client.until(lambda: child in client.jobs["a", "g"].pids)
        node.driver.add(child, {GPU: MIB})
        await client.until(lambda: client.jobs["a", "g"].locked)
        assert states(node, child) == {DriverState.LOCKED}
        assert states(node, other) == {DriverState.RUNNING}


async def test_what_belongs_to_no_tree_stays_unmanaged(node: FakeNode, family: Family) -> None:
    async with node.up() as client:
        await plant(client, family)
        stranger = node.process(MIB)
        await client.until(lambda: stranger in client.accelerators[GPU].unmanaged_pids)
        child = family.start("child")
        node.driver.add(child, {GPU: MIB})
        await client.until(lambda: child in client.jobs["a", "g"].pids)
        assert child not in client.accelerators[GPU].unmanaged_pids
        assert stranger not in client.jobs["a", "g"].pids


async def test_after_a_restart_of_the_agent_a_trees_members_are_known_at_once(node: FakeNode, family: Family) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        await plant(client, family)
    child = family.start("daemon")  # while no agent is there
    node.driver.add(child, {GPU: MIB})
    async with node.up() as client:
        assert set(client.jobs["a", "g"].pids) == {family.root, child}
        await client.snapshot("a", id="s1")
        assert states(node, child) == {DriverState.CHECKPOINTED}


async def test_a_tree_outlives_its_root_and_keeper_and_ends_with_its_last_process(
    node: FakeNode, family: Family
) -> None:
    async with node.up() as client:
        await plant(client, family)
        child = family.start("daemon")
        family.kill(family.process.pid)
        family.kill(family.root)
        await client.until(lambda: list(client.jobs["a", "g"].pids) == [child])
        family.kill(child)
        await client.until(lambda: ("a", "g") in client.gone)
        assert node.shell._node.registry.trees == {}


async def test_the_root_may_end_before_anybody_has_seen_its_child(node: FakeNode, family: Family) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        await plant(client, family)
        child = family.start("child")
        family.kill(family.root)
        await client.until(lambda: list(client.jobs["a", "g"].pids) == [child])
        assert ("a", "g") not in client.gone


async def test_kill_takes_a_whole_tree(node: FakeNode, family: Family) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        await plant(client, family)
        children = [family.start(how) for how in ("child", "daemon", "bare-daemon", "exec")]
        killed = await client.kill("a")
        assert {family.root, *children} <= set(killed.killed_pids)
        for pid in children:
            wait_for_end(pid)
        await client.until(lambda: ("a", "g") in client.gone)


async def test_a_sampler_below_a_tree_may_register_itself_for_another_group(node: FakeNode, family: Family) -> None:
    async with node.up() as client:
        await plant(client, family)
        sampler = family.start("child")
        await client.until(lambda: sampler in client.jobs["a", "g"].pids)
        await client.register("a", "h", sampler)
        node.driver.add(sampler, {GPU1: MIB})
        await client.until(lambda: list(client.jobs["a", "h"].pids) == [sampler])
        await client.until(lambda: sampler not in client.jobs["a", "g"].pids)


async def test_a_tree_may_be_registered_again(node: FakeNode, family: Family) -> None:
    async with node.up() as client:
        await plant(client, family)
        await plant(client, family)
        [own] = node.shell._node.registry.trees.values()
        assert len(own) == 1


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"root_pid": 0}, grpc.StatusCode.INVALID_ARGUMENT, "root_pid"),
        ({"keeper_pid": -1}, grpc.StatusCode.INVALID_ARGUMENT, "keeper_pid"),
        ({"marker": "short"}, grpc.StatusCode.INVALID_ARGUMENT, "marker"),
        ({"marker": "m" * 300}, grpc.StatusCode.INVALID_ARGUMENT, "marker"),
        ({"cgroup_controllers": "../.."}, grpc.StatusCode.INVALID_ARGUMENT, "cgroup_controllers"),
        ({"marker": "not the marker of it"}, grpc.StatusCode.INVALID_ARGUMENT, "marker"),
    ],
)
async def test_bad_trees_are_refused(
    node: FakeNode, family: Family, changes: dict[str, object], code: grpc.StatusCode, text: str
) -> None:
    async with node.up() as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plant(client, family, **changes)
        assert refused.value.code() is code
        assert text in (refused.value.details() or "")
        assert ("a", "g") not in client.jobs


async def test_a_driver_that_hangs_is_asked_about_each_member_again(node: FakeNode, family: Family) -> None:
    """The batch is given up; what follows is a question per process, as without trees."""
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        node.driver.add(family.root, {GPU: 4 * MIB})
        await plant(client, family)
        child = family.start("child")
        node.driver.add(child, {GPU: MIB})
        node.driver.is_silent_on_states = True
        await client.lock("a")
        assert (Verb.STATE, child) in node.driver.calls
        assert states(node, family.root, child) == {DriverState.LOCKED}
