"""`python -m snapshot_agent_server` as a person or `timeslice up` runs it."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mock_machine import MockMachine


def run(machine: MockMachine, *flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command with bad input: it must end by itself."""
    command = [sys.executable, "-m", "snapshot_agent_server", "--state-dir", str(machine.folder / "state"), *flags]
    if "--listen" not in flags:
        command += ["--listen", machine.address]
    return subprocess.run(command, env=env or machine.env, capture_output=True, text=True, timeout=30, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done
    assert done.stderr.startswith("snapshot-agent: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


async def test_it_says_when_it_is_ready_is_healthy_and_ends_in_order(machine: MockMachine) -> None:
    async with machine.agent(groups=("trainers=0,1",)) as agent:
        ready = agent.log[-1]
        assert ready["listen"] == [machine.address]
        assert ready["groups"] == {"trainers": machine.uuids}
        async with grpc.aio.insecure_channel(machine.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert await agent.terminate() == 0
    assert machine.address.removeprefix("unix:").rsplit("/", 1)[1] not in os.listdir(machine.folder)


async def test_without_groups_each_gpu_is_one(machine: MockMachine) -> None:
    async with machine.agent(groups=()) as agent:
        assert agent.log[-1]["groups"] == {"gpu0": machine.uuids[:1], "gpu1": machine.uuids[1:]}


async def test_a_second_agent_is_refused(machine: MockMachine) -> None:
    async with machine.agent() as agent:
        assert f"another snapshot agent (process {agent.pid})" in refused(run(machine, "--listen", "127.0.0.1:0"))


def test_help_names_every_flag(machine: MockMachine) -> None:
    done = run(machine, "--help")
    assert done.returncode == 0
    for flag in ("--listen", "--node", "--group", "--state-dir", "--allow-unfenced", "--restore-margin-mib"):
        assert flag in done.stdout


def test_without_a_driver_it_names_the_mock(machine: MockMachine) -> None:
    env = {**machine.env, "LD_LIBRARY_PATH": ""}
    assert "gpu-mock run -- " in refused(run(machine, env=env))


def test_wrong_flags_and_groups_are_one_line(machine: MockMachine) -> None:
    assert "--nonsense" in refused(run(machine, "--nonsense"))
    assert "no accelerator '7'" in refused(run(machine, "--group", "g=7"))
    assert "in group 'g' already" in refused(run(machine, "--group", "g=0", "--group", "h=0"))


def test_a_port_in_use_is_one_line(machine: MockMachine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refused(run(machine, "--listen", f"127.0.0.1:{port}"))
    path = machine.folder / "taken.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert "in use" in refused(run(machine, "--listen", f"unix:{path}"))


@pytest.mark.parametrize("content", [b"garbage" * 500, None])
def test_a_store_that_cannot_be_used_is_one_line_and_stays(machine: MockMachine, content: bytes | None) -> None:
    file = machine.folder / "state/agent.db"
    file.parent.mkdir()
    if content is None:
        db = sqlite3.connect(file)
        db.execute("pragma user_version = 99")
        db.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    text = refused(run(machine))
    assert str(file) in text
    assert "newer version" in text or "cannot be used" in text
    assert file.read_bytes() == before


def test_an_unwritable_folder_is_one_line(machine: MockMachine) -> None:
    (machine.folder / "file").write_text("")
    command = [sys.executable, "-m", "snapshot_agent_server", "--state-dir", str(machine.folder / "file/x")]
    done = subprocess.run(command, env=dict(os.environ | machine.env), capture_output=True, text=True, check=False)
    assert "--state-dir" in refused(done)


async def test_it_ends_at_once_while_the_driver_still_starts(machine: MockMachine) -> None:
    machine.inject("set", "init-delay=60")
    command = [sys.executable, "-m", "snapshot_agent_server", "--state-dir", str(machine.folder / "state")]
    process = await asyncio.create_subprocess_exec(*command, env=machine.env, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(20.0):
        assert b"snapshot agent starts" in await process.stdout.readline()
        process.terminate()
        assert await process.wait() == 0
    process._transport.close()  # type: ignore[attr-defined]
