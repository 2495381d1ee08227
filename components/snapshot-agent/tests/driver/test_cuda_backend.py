"""What /proc says of a process decides whether the driver is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node_under_test import GPU, MIB
from snapshot_agent_server.backends.cuda import LOOK_S, CudaBackend
from snapshot_agent_server.core.effects import CallDriver
from snapshot_agent_server.core.ids import OperationId, ProcessId
from snapshot_agent_server.core.outcomes import Done, Gone, Outcome, Stopped, Verb
from snapshot_agent_server.driver.fake import FakeDriver

PROCESS = ProcessId(77, 1234)
LOCK = CallDriver(OperationId("o"), PROCESS, Verb.LOCK, timeout_s=5.0, lock_timeout_ms=1000)


class Place:
    """A /proc with one process in it, a driver that knows it, and a clock."""

    def __init__(self, proc: Path) -> None:
        self.now = 100.0
        self.proc = proc
        (proc / str(PROCESS.pid)).mkdir()
        self.shows("S")
        self.driver = FakeDriver({GPU: 64 * MIB})
        self.driver.add(PROCESS.pid, {GPU: MIB})
        self.backend = CudaBackend(self.driver, proc, clock=lambda: self.now)

    def shows(self, state: str, start_time: int = PROCESS.start_time) -> None:
        fields = [state, "1", *["0"] * 17, str(start_time), "0"]
        (self.proc / str(PROCESS.pid) / "stat").write_text(f"{PROCESS.pid} (a job) {' '.join(fields)}")

    async def lock(self) -> Outcome:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.backend.begin(LOCK, lambda _, said, __: outcome.set_result(said))
        async with asyncio.timeout(5.0):
            return await outcome


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_the_driver_is_asked_for_the_process_that_is_meant(place: Place) -> None:
    assert isinstance(await place.lock(), Done)


async def test_a_stopped_process_and_a_stranger_with_its_pid_are_not_brought_to_the_driver(place: Place) -> None:
    place.shows("T")
    assert isinstance(await place.lock(), Stopped)
    place.shows("S", start_time=PROCESS.start_time + 1)
    assert isinstance(await place.lock(), Gone)
    assert not place.driver.calls


async def test_a_look_ahead_is_good_for_one_call_that_comes_soon(place: Place) -> None:
    place.shows("T")
    place.backend.look(LOCK)
    place.shows("S")
    place.now += LOOK_S / 2
    assert isinstance(await place.lock(), Stopped), "what was seen a moment ago"
    assert isinstance(await place.lock(), Done), "and once only"


async def test_a_look_ahead_that_is_old_is_looked_at_again(place: Place) -> None:
    place.backend.look(LOCK)
    place.shows("T")
    place.now += LOOK_S * 1.1
    assert isinstance(await place.lock(), Stopped)
