"""A process tree with real device memory, on the GPU mock."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from mock_machine import TARGET, MockMachine, TargetProcess
from node_under_test import Client, following
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb

MIB = 1 << 20
MARKER = "the marker of a tree"
CHILD = 'read go; "$@" & echo $!; wait'
ORPHAN = 'read go; (setsid "$@" & echo $!)'
"""Once told to, the root starts what speaks on its stdin and stdout from then on; and ends, if that is an orphan."""


class Root(TargetProcess):
    """A shell, which has no CUDA, and what it starts."""

    async def go(self) -> int:
        """Start the child; returns its pid. The commands of a target are the child's from now on."""
        self.give("go")
        pid = int(await self.hear())
        assert await self.hear() == "here"
        return pid


Start = Callable[[str], Awaitable[Root]]


@pytest_asyncio.fixture
async def start(machine: MockMachine) -> AsyncIterator[Start]:
    started: list[asyncio.subprocess.Process] = []

    async def start(script: str) -> Root:
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            f"exec 3<&0; {script.replace('&', '<&3 &', 1)}",
            "sh",
            sys.executable,
            str(TARGET),
            env={**machine.env, "TIMESLICE_TREE": MARKER},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return Root(process)

    yield start
    for process in started:
        assert process.stdin is not None
        process.stdin.close()  # the child ends with it, and lets go of stdout
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


async def plant(client: Client, root: Root) -> None:
    tree = pb.ProcessTree(root_pid=root.pid, marker=MARKER)
    await client.register_workload(pb.RegisterWorkload(job_id="a", group="g", tree=tree))


@pytest.mark.parametrize("script", [CHILD, ORPHAN], ids=["child", "orphan"])
async def test_a_member_that_no_sample_has_shown_is_saved_and_comes_back(
    machine: MockMachine, start: Start, script: str
) -> None:
    root = await start(script)
    async with machine.served("--sample-interval-ms", "3600000") as client:
        await plant(client, root)
        pid = await root.go()
        assert await root.tell("alloc", 0, 8 * MIB) == "ok"
        saved = await client.snapshot("a", id="s")
        assert (saved.status, saved.snapshot_device_bytes) == (pb.OPERATION_STATUS_COMPLETE, 8 * MIB)
        assert machine.state_of(pid) == "checkpointed"
        back = await client.restore("a", id="r")
        assert back.status == pb.OPERATION_STATUS_COMPLETE
        assert await root.tell("check") == "same"


async def test_a_member_that_starts_cuda_in_anothers_turn_is_locked(machine: MockMachine, start: Start) -> None:
    root = await start(CHILD)
    other = await machine.target(4 * MIB)
    async with machine.served() as client:
        await plant(client, root)
        await client.register("b", "g", other.pid)
        await client.unlock("b", fencing_token=1)
        pid = await root.go()
        assert await root.tell("alloc", 0, 4 * MIB) == "ok"
        await client.until(lambda: client.jobs["a", "g"].locked, timeout_s=5.0)
        assert (machine.state_of(pid), machine.state_of(other.pid)) == ("locked", "running")
        assert set(client.jobs["a", "g"].pids) == {root.pid, pid}
        await client.unlock("a", fencing_token=2)
        assert await root.tell("check") == "same"


async def test_an_agent_that_was_killed_knows_the_members_that_were_never_on_record(
    machine: MockMachine, start: Start
) -> None:
    root = await start(CHILD)
    async with machine.agent() as agent:
        async with following(machine.address) as client:
            await plant(client, root)
        pid = await root.go()
        await agent.kill()
    assert await root.tell("alloc", 0, 4 * MIB) == "ok"
    async with machine.served("--sample-interval-ms", "3600000") as client:
        assert set(client.jobs["a", "g"].pids) == {root.pid, pid}
        await client.snapshot("a", id="s")
        assert machine.state_of(pid) == "checkpointed"
