"""The agent with --kubernetes, as a pod runs it, and an API server that is not quite one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fake_api_server import FakeApiServer
from mock_machine import MockMachine, TargetProcess
from node_under_test import Client, following
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb


@pytest.fixture
async def server(machine: MockMachine, tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    server = FakeApiServer()
    async with server.up():
        machine.env["KUBECONFIG"] = str(server.kubeconfig(tmp_path / "kubeconfig"))
        yield server


async def name(client: Client, target: TargetProcess) -> None:
    """Make the process job a's in group trainers, as a peer does that names the processes with its orders."""
    chosen = pb.BackendConfig(cuda=pb.CudaBackendConfig(explicit_target=pb.ProcessTarget(pids=[target.pid])))
    named = await client.snapshot("a", "trainers", id="named", backend_config=chosen)
    assert named.status == pb.OPERATION_STATUS_COMPLETE
    await client.restore("a", "trainers", id="back")


async def test_groups_come_and_go_as_the_cluster_says(machine: MockMachine, server: FakeApiServer) -> None:
    first, second = machine.uuids
    trainers = await server.group("trainers", "0")
    async with machine.agent("--kubernetes", groups=()) as agent, following(machine.address) as client:
        assert agent.log[-1]["groups"] == {"trainers": [first]}
        await client.until(lambda: list(client.accelerators[first].groups) == ["trainers"])
        await server.group("samplers", "1")
        await client.until(lambda: list(client.accelerators[second].groups) == ["samplers"])
        await server.group("greedy")
        await client.until(lambda: list(client.accelerators[first].groups) == ["trainers", "greedy"])
        await server.delete("/apis/timeslice.io/v1alpha1/timeslicegroups", trainers)
        await client.until(lambda: list(client.accelerators[first].groups) == ["greedy"])


async def test_a_workload_in_a_group_that_left_is_still_saved_and_brought_back(
    machine: MockMachine, server: FakeApiServer
) -> None:
    trainers = await server.group("trainers", "0")
    target = await machine.target()
    async with machine.agent("--kubernetes", groups=()), following(machine.address) as client:
        await name(client, target)
        await server.delete("/apis/timeslice.io/v1alpha1/timeslicegroups", trainers)
        await client.until(lambda: "left this node" in client.jobs["a", "trainers"].reason)
        assert (await client.snapshot("a", "trainers", id="s")).status == pb.OPERATION_STATUS_COMPLETE
        assert (await client.restore("a", "trainers", id="r")).status == pb.OPERATION_STATUS_COMPLETE
        assert await target.tell("check") == "same"


async def test_while_the_api_server_is_away_everything_goes_on_also_after_a_restart(
    machine: MockMachine, server: FakeApiServer
) -> None:
    await server.group("trainers", "0")
    target = await machine.target()
    async with machine.agent("--kubernetes", groups=()), following(machine.address) as client:
        await name(client, target)
        await server.stop()
        assert (await client.snapshot("a", "trainers", id="s")).status == pb.OPERATION_STATUS_COMPLETE
    async with machine.agent("--kubernetes", groups=()) as agent, following(machine.address) as client:
        assert any("going on with" in str(entry["msg"]) for entry in agent.log)
        assert client.jobs["a", "trainers"].state == pb.JOB_STATE_SAVED
        assert (await client.restore("a", "trainers", id="r")).status == pb.OPERATION_STATUS_COMPLETE
        await server.group("samplers", "1")
        await server.start()
        await client.until(lambda: list(client.accelerators[machine.uuids[1]].groups) == ["samplers"])


async def test_a_new_node_is_not_ready_before_the_api_server_has_spoken(
    machine: MockMachine, server: FakeApiServer
) -> None:
    """Without a record it would tell of no jobs where there may be saved ones."""
    await server.stop()
    await server.group("trainers", "0")
    command = [sys.executable, "-m", "snapshot_agent_server", "--kubernetes", "--node", "n"]
    command += ["--state-dir", str(machine.folder / "state"), "--listen", machine.address]
    process = await asyncio.create_subprocess_exec(*command, env=machine.env, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(30.0):
        async for line in process.stdout:
            if b"what is known stays" in line:
                break
        process.terminate()
        rest = await process.stdout.read()
        assert await process.wait() == 0
    assert b"agent ready" not in rest
    process._transport.close()  # type: ignore[attr-defined]


async def test_in_a_rolling_update_the_new_one_waits_for_the_old_ones_end(
    machine: MockMachine, server: FakeApiServer
) -> None:
    await server.group("trainers", "0")
    target = await machine.target()
    machine.inject("slow", "checkpoint=1.5")
    async with machine.agent("--kubernetes", groups=()) as old, following(machine.address) as client:
        await name(client, target)
        await client.stub.Snapshot(pb.SnapshotRequest(job_id="a", group="trainers", operation_id="s"))
        ending = asyncio.create_task(old.terminate())
        async with machine.agent("--kubernetes", groups=()) as new, following(machine.address) as again:
            assert await ending == 0
            assert f"(process {old.pid}) to end" in str(new.log[0]["msg"])
            assert again.jobs["a", "trainers"].state == pb.JOB_STATE_SAVED
            told = await again.stub.GetOperation(pb.GetOperationRequest(operation_id="s"))
            assert told.status == pb.OPERATION_STATUS_COMPLETE
            assert (await again.restore("a", "trainers", id="r")).status == pb.OPERATION_STATUS_COMPLETE


def test_flags_that_do_not_go_together_are_one_line(machine: MockMachine) -> None:
    for flags, text in (
        (["--kubernetes", "--node", "n", "--group", "g=0"], "--group does not go with --kubernetes"),
        (["--kubernetes"], "TIMESLICE_NODE"),
        (["--kubernetes", "--node", "n"], "set KUBECONFIG"),
    ):
        command = [sys.executable, "-m", "snapshot_agent_server", "--state-dir", str(machine.folder / "state"), *flags]
        env = {**machine.env, "HOME": str(machine.folder)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, text in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr
