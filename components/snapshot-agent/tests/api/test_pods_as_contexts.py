"""Pods as contexts, through the API: real processes, a folder that says which pods they are in, a fake driver."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from node_under_test import GPU, GPU1, MIB, FakeNode
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.processes import proc


@pytest.fixture
def node(make_node: Callable[..., FakeNode]) -> FakeNode:
    return make_node(is_in_cluster=True)


def states(node: FakeNode, *pids: int) -> set[DriverState]:
    return {node.driver.processes[pid].state for pid in pids}


async def test_a_pods_processes_are_a_context_without_a_word_from_them(node: FakeNode) -> None:
    async with node.up() as client:
        pod = node.pod("a")
        shell, trainer = node.run_in(pod, None), node.run_in(pod)
        job = await client.until(lambda: client.jobs.get(("a", "g")))
        assert (job.state, list(job.pids)) == (pb.JOB_STATE_RUNNING, [trainer])
        node.driver.add(shell, {GPU1: MIB})
        await client.until(lambda: client.jobs["a", "g"].state == pb.JOB_STATE_FAULTED)
        assert "is registered for group 'g' and uses GPU-1" in client.jobs["a", "g"].reason


async def test_what_no_sample_has_shown_is_saved_and_brought_back(node: FakeNode) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        pod = node.pod("a")
        pids = [node.run_in(pod, 2 * MIB), node.run_in(pod, 3 * MIB), node.run_in(node.pod("a"), MIB)]
        stranger = node.run_in(node.pod("b"))
        saved = await client.snapshot("a", id="s1")
        assert (saved.status, saved.snapshot_device_bytes) == (pb.OPERATION_STATUS_COMPLETE, 6 * MIB)
        assert states(node, *pids) == {DriverState.CHECKPOINTED}
        assert states(node, stranger) == {DriverState.RUNNING}
        await client.restore("a", id="r1")
        assert states(node, *pids) == {DriverState.RUNNING}


async def test_the_drivers_word_counts_where_nvml_lists_nobody(node: FakeNode) -> None:
    node.driver.lists_processes = False
    async with node.up() as client:
        trainer = node.run_in(node.pod("a"))
        await client.until(lambda: ("a", "g") in client.jobs)
        assert (await client.lock("a")).locked_pids == [trainer]


async def test_the_others_of_a_pod_are_not_killed_with_its_context(node: FakeNode) -> None:
    node.sample_interval_s = 3600.0
    async with node.up() as client:
        pod = node.pod("a")
        sidecar, trainer = node.run_in(pod, None), node.run_in(pod)
        assert (await client.kill("a")).killed_pids == [trainer]
        await client.until(lambda: ("a", "g") in client.gone)
        os.kill(sidecar, 0)


async def test_a_restarted_agent_knows_the_pods_before_it_serves(node: FakeNode) -> None:
    async with node.up() as client:
        pod = node.pod("a")
        trainer = node.run_in(pod)
        await client.until(lambda: ("a", "g") in client.jobs)
        await client.snapshot("a", id="s1")
    late = node.run_in(pod)
    async with node.up() as client:
        assert list(client.jobs["a", "g"].pids) == [trainer, late]
        assert states(node, trainer) == {DriverState.CHECKPOINTED}


async def test_a_pod_that_ends_takes_its_context_along(node: FakeNode) -> None:
    async with node.up() as client:
        pod = node.pod("a")
        trainer = node.run_in(pod)
        await client.until(lambda: ("a", "g") in client.jobs)
        await client.snapshot("a", id="s1")
        os.kill(trainer, signal.SIGKILL)
        await client.until(lambda: ("a", "g") in client.gone)
        del node.pods[pod]
        node.tell_pods()
        again = node.run_in(node.pod("a"))
        await client.until(lambda: list(client.jobs.get(("a", "g"), pb.JobStatus()).pids) == [again])


async def test_a_pid_that_a_pod_names_is_its_own(node: FakeNode) -> None:
    """Pid 1 of the node is nobody's business, and neither is that of another job's pod."""
    async with node.up() as client:
        pod = node.pod("a")
        ours, theirs = node.run_in(pod, None, inner=1), node.run_in(node.pod("b"), None, inner=1)
        node.run_in(pod, None, inner=1, container=64 * "d")  # the pause process
        await client.register("a", "g", 1)
        job = await client.until(lambda: client.jobs.get(("a", "g")))
        assert list(job.pids) == [ours]
        await client.register("a", "g", theirs, os.getpid())
        node.driver.add(theirs, {GPU: MIB})
        await client.until(lambda: ("b", "g") in client.jobs)
        assert list(client.jobs["a", "g"].pids) == [ours]


async def test_processes_are_named_as_they_name_themselves_in_their_pods(node: FakeNode) -> None:
    """So that a client's session, which knows no other names, is known to be alive."""
    async with node.up() as client:
        pod, other = node.pod("a"), node.pod("a")
        found, registered = node.run_in(pod, inner=7), node.run_in(other, None, inner=1)
        await client.register("a", "g", 1)
        facts = [proc.facts(pid) for pid in (registered, found)]
        named = [
            pb.PodProcess(pod=name, pid=inner, start_time=fact.id.start_time)
            for name, inner, fact in zip(("a-1", "a-0"), (1, 7), facts, strict=True)
            if fact is not None
        ]
        node.driver.add(registered, {GPU: MIB})
        job = await client.until(lambda: len(client.jobs["a", "g"].pids) == 2 and client.jobs["a", "g"])
        assert list(job.in_pods) == named
    async with node.up() as client:
        assert list(client.jobs["a", "g"].in_pods) == named


async def test_a_pid_that_two_pods_of_the_job_have_waits_for_the_device_to_tell(node: FakeNode) -> None:
    async with node.up() as client:
        both = [node.run_in(node.pod("a"), None, inner=1) for _ in range(2)]
        await client.register("a", "g", 1)
        node.driver.add(both[1], {GPU: MIB})
        job = await client.until(lambda: client.jobs.get(("a", "g")))
        assert list(job.pids) == [both[1]]


async def test_a_workload_in_a_pod_lives_as_long_as_its_process_there(node: FakeNode) -> None:
    async with node.up() as client:
        pid = node.run_in(node.pod("a"), None, inner=7)
        facts = proc.facts(pid)
        assert facts is not None
        call = client.stub.WorkloadChannel()
        instance = pb.WorkloadInstance(id="i", pid=7, start_time=facts.id.start_time)
        offer = pb.RegisterWorkload(job_id="a", group="g", capabilities=pb.WorkloadCapabilities(), instance=instance)
        await call.write(pb.WorkloadMessage(register=offer))
        await client.until(lambda: ("a", "g") in client.jobs)
        call.cancel()
        os.kill(pid, signal.SIGKILL)
        await client.until(lambda: ("a", "g") in client.gone)
