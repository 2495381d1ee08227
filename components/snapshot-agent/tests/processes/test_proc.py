"""What /proc says, and the end of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshot_agent_server.core.ids import ProcessId
from snapshot_agent_server.processes import proc
from snapshot_agent_server.processes.pidfd import ProcessEnds, kill


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "3600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    facts = proc.facts(sleeper.pid)
    assert facts is not None
    assert proc.is_same(facts.id)
    assert not proc.is_same(ProcessId(sleeper.pid, facts.id.start_time + 1))


def test_a_name_with_brackets_and_spaces_is_no_riddle(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    fields = " ".join(["7 (a) b) (c)", "T", *["0"] * 18, "4242", "0"])
    (folder / "stat").write_text(fields + "\n")
    facts = proc.facts(7, tmp_path)
    assert facts is not None
    assert (facts.id, facts.state) == (ProcessId(7, 4242), "T")
    assert facts.stopped == "stopped by a signal"


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    facts = proc.facts(process.pid)
    assert facts is not None
    assert facts.has_ended
    assert not proc.is_same(facts.id)
    process.wait()
    assert proc.facts(process.pid) is None


def test_a_stopped_process_is_found(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    facts = proc.facts(sleeper.pid)
    assert facts is not None
    assert facts.stopped


@pytest.mark.parametrize(
    ("line", "file", "text"),
    [
        ("0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 1\n"),
        ("4:memory:/x\n5:freezer:/a/b\n0::/\n", "freezer/a/b/freezer.state", "FROZEN\n"),
    ],
)
def test_a_frozen_cgroup_is_found(tmp_path: Path, line: str, file: str, text: str) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(line)
    events = tmp_path / "cgroup" / file
    events.parent.mkdir(parents=True)
    events.write_text(text)
    assert proc.is_frozen(7, tmp_path / "proc", tmp_path / "cgroup")
    events.write_text(text.replace("frozen 1", "frozen 0").replace("FROZEN", "THAWED"))
    assert not proc.is_frozen(7, tmp_path / "proc", tmp_path / "cgroup")


async def test_the_end_of_a_process_is_told_also_while_nobody_reaps_it(sleeper: subprocess.Popen[bytes]) -> None:
    ended: asyncio.Queue[ProcessId] = asyncio.Queue()
    ends = ProcessEnds(ended.put_nowait)
    facts = proc.facts(sleeper.pid)
    assert facts is not None
    ends.watch(facts.id)
    ends.watch(facts.id)
    sleeper.kill()
    async with asyncio.timeout(2.0):
        assert await ended.get() == facts.id
    assert ended.empty()
    ends.close()


async def test_a_stranger_with_the_pid_counts_as_the_end(sleeper: subprocess.Popen[bytes]) -> None:
    ended: asyncio.Queue[ProcessId] = asyncio.Queue()
    ends = ProcessEnds(ended.put_nowait)
    earlier = ProcessId(sleeper.pid, 1)
    ends.watch(earlier)
    async with asyncio.timeout(2.0):
        assert await ended.get() == earlier
    ends.close()


def test_exactly_the_named_process_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    facts = proc.facts(sleeper.pid)
    assert facts is not None
    assert not kill(ProcessId(sleeper.pid, facts.id.start_time - 1)), "a stranger with its pid"
    assert sleeper.poll() is None
    assert kill(facts.id)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not kill(facts.id), "a zombie"
    assert sleeper.wait() == -signal.SIGKILL
    assert not kill(facts.id)


def test_a_stopped_process_is_killed_too(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    facts = proc.facts(sleeper.pid)
    assert facts is not None
    assert kill(facts.id)
    assert sleeper.wait(5.0) == -signal.SIGKILL
