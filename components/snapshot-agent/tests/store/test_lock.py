"""One agent for each state folder, also while one takes over from another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapshot_agent_server.store.lock import InUse, take, take_over

HOLDER = """
import pathlib, sys
from snapshot_agent_server.store.lock import take
take(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that has the folder until its stdin is closed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process  # type: ignore[misc]
        process.kill()


async def test_it_waits_for_the_one_before_and_takes_over_at_its_end(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    waiting = asyncio.create_task(take_over(tmp_path, 30.0))
    done, _ = await asyncio.wait((waiting,), timeout=0.1)
    assert not done
    holder.kill()
    fd = await waiting
    assert (tmp_path / "agent.lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        take(tmp_path)
    os.close(fd)
    os.close(take(tmp_path))


async def test_it_refuses_beside_one_that_stays(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(InUse, match=rf"another snapshot agent \(process {holder.pid}\)"):
        await take_over(tmp_path, 0.1)


async def test_a_wait_that_is_given_up_leaves_the_folder_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    waiting = asyncio.create_task(take_over(tmp_path, 30.0))
    await asyncio.wait((waiting,), timeout=0.1)
    waiting.cancel()
    await asyncio.wait((waiting,))
    holder.kill()
    async with asyncio.timeout(10.0):
        os.close(await take_over(tmp_path, 10.0))
