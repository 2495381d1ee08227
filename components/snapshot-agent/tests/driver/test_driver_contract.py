"""What any driver promises: one suite for the fake and for the real one on the GPU mock."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from mock_machine import MockMachine, TargetProcess
from node_under_test import GPU, GPU1, MIB
from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.outcomes import Abandoned, Code, Done, DriverState, NoRoom, Refused, Verb
from snapshot_agent_server.core.samples import Sample
from snapshot_agent_server.driver.cuda_driver import CudaDriver
from snapshot_agent_server.driver.fake import FakeDriver, Fault
from snapshot_agent_server.driver.interface import Driver
from snapshot_agent_server.driver.pool import Pool


class Rig(Protocol):
    """A driver, and the means to put processes and faults under it."""

    driver: Driver
    gpu: AcceleratorId

    async def process(self, size: int | None) -> int: ...

    def fail(self, verb: Verb, code: int) -> None: ...

    def hang(self, verb: Verb) -> None: ...

    def hide_figures(self) -> None: ...

    async def busy(self, pid: int) -> None: ...

    async def close(self) -> None: ...


class FakeRig:
    def __init__(self) -> None:
        self.driver = FakeDriver({GPU: 64 * MIB, GPU1: 64 * MIB})
        self.gpu = GPU
        self._pid = 1_000_000

    async def process(self, size: int | None) -> int:
        self._pid += 1
        if size is not None:
            self.driver.add(self._pid, {GPU: size})
        return self._pid

    def fail(self, verb: Verb, code: int) -> None:
        self.driver.faults.append(Fault(verb, code=code))

    def hang(self, verb: Verb) -> None:
        self.driver.faults.append(Fault(verb))

    def hide_figures(self) -> None:
        self.driver.shows_memory = False

    async def busy(self, pid: int) -> None:
        self.driver.processes[pid].is_drained.clear()

    async def close(self) -> None:
        pass


class MockRig:
    def __init__(self, folder: Path) -> None:
        self.machine = MockMachine(folder)
        for name in ("TIMESLICE_GPU_MOCK_DIR", "TIMESLICE_GPU_MOCK", "LD_LIBRARY_PATH"):
            os.environ[name] = self.machine.env[name]
        self.driver = CudaDriver(Pool(2))
        self.gpu = AcceleratorId(self.machine.uuids[0])
        self._targets: dict[int, TargetProcess] = {}

    async def process(self, size: int | None) -> int:
        target = await self.machine.target(size)
        self._targets[target.pid] = target
        return target.pid

    def fail(self, verb: Verb, code: int) -> None:
        self.machine.inject("fail", f"op={self._name(verb)}", f"code={code}", "times=1")

    def hang(self, verb: Verb) -> None:
        self.machine.inject("hang", f"op={self._name(verb)}", "for=2")

    def hide_figures(self) -> None:
        self.machine.inject("no-memory-figures")

    async def busy(self, pid: int) -> None:
        assert await self._targets[pid].tell("busy", 3000) == "ok"

    async def close(self) -> None:
        await self.driver.close()
        await self.machine.close()

    def _name(self, verb: Verb) -> str:
        return "get-state" if verb is Verb.STATE else str(verb)


@pytest_asyncio.fixture(params=["fake", "mock"])
async def rig(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    if request.param == "fake":
        yield FakeRig()
        return
    for name in ("TIMESLICE_GPU_MOCK_DIR", "TIMESLICE_GPU_MOCK", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back what the rig sets
    rig = MockRig(tmp_path / "m")
    await rig.driver.start()
    yield rig
    await rig.close()


async def test_a_process_goes_round(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    assert _state(await rig.driver.state(pid, 5.0)) is DriverState.RUNNING
    assert _state(await rig.driver.lock(pid, 1000, 5.0)) is DriverState.LOCKED
    saved = await rig.driver.checkpoint(pid, [rig.gpu], 5.0)
    assert isinstance(saved, Done)
    assert saved.usage == {rig.gpu: 8 * MIB}
    assert _state(await rig.driver.state(pid, 5.0)) is DriverState.CHECKPOINTED
    assert _used(await rig.driver.sample([], 5.0), rig.gpu) == 0
    assert _state(await rig.driver.restore(pid, {rig.gpu: 8 * MIB}, 0, 5.0)) is DriverState.LOCKED
    assert _used(await rig.driver.sample([], 5.0), rig.gpu) == 8 * MIB
    assert _state(await rig.driver.unlock(pid, 5.0)) is DriverState.RUNNING


async def test_the_wrong_order_is_an_illegal_state(rig: Rig) -> None:
    pid = await rig.process(MIB)
    assert _code(await rig.driver.checkpoint(pid, [], 5.0)) == Code.ILLEGAL_STATE
    assert _code(await rig.driver.restore(pid, {}, 0, 5.0)) == Code.ILLEGAL_STATE
    assert _code(await rig.driver.unlock(pid, 5.0)) == Code.ILLEGAL_STATE
    await rig.driver.lock(pid, 1000, 5.0)
    assert _code(await rig.driver.lock(pid, 1000, 5.0)) == Code.ILLEGAL_STATE


async def test_a_process_without_cuda_is_an_invalid_value(rig: Rig) -> None:
    pid = await rig.process(None)
    assert _code(await rig.driver.state(pid, 5.0)) == Code.INVALID_VALUE
    assert _code(await rig.driver.lock(pid, 1000, 5.0)) == Code.INVALID_VALUE
    sample = await rig.driver.sample([pid], 5.0)
    assert isinstance(sample, Sample)
    assert sample.states == {pid: DriverState.NONE}


async def test_the_states_of_several_processes_come_in_one_answer(rig: Rig) -> None:
    running, locked, without = await rig.process(MIB), await rig.process(MIB), await rig.process(None)
    await rig.driver.lock(locked, 1000, 5.0)
    states = await rig.driver.states([running, locked, without], 5.0)
    assert states == {running: DriverState.RUNNING, locked: DriverState.LOCKED, without: DriverState.NONE}


async def test_a_lock_of_a_busy_process_times_out_and_it_runs_on(rig: Rig) -> None:
    pid = await rig.process(MIB)
    await rig.busy(pid)
    assert _code(await rig.driver.lock(pid, 100, 5.0)) == Code.NOT_READY
    assert _state(await rig.driver.state(pid, 5.0)) is DriverState.RUNNING


async def test_a_lock_without_a_time_limit_is_refused(rig: Rig) -> None:
    with pytest.raises(ValueError, match="wait for ever"):
        await rig.driver.lock(await rig.process(MIB), 0, 5.0)


@pytest.mark.parametrize("verb", [Verb.LOCK, Verb.STATE])
async def test_what_the_driver_refuses_comes_back_as_data(rig: Rig, verb: Verb) -> None:
    pid = await rig.process(MIB)
    rig.fail(verb, 3)
    answer = await (rig.driver.state(pid, 5.0) if verb is Verb.STATE else rig.driver.lock(pid, 1000, 5.0))
    assert _code(answer) == Code.NOT_INITIALIZED


async def test_a_call_that_hangs_is_abandoned_and_the_next_one_works(rig: Rig) -> None:
    pid = await rig.process(MIB)
    rig.hang(Verb.LOCK)
    assert isinstance(await rig.driver.lock(pid, 100, 0.3), Abandoned)
    assert _state(await rig.driver.state(pid, 5.0)) is DriverState.RUNNING


async def test_a_restore_without_room_is_not_tried(rig: Rig) -> None:
    pid, other = await rig.process(40 * MIB), await rig.process(8 * MIB)
    await rig.driver.lock(pid, 1000, 5.0)
    await rig.driver.checkpoint(pid, [rig.gpu], 5.0)
    answer = await rig.driver.restore(pid, {rig.gpu: 40 * MIB}, 20 * MIB, 5.0)
    assert isinstance(answer, NoRoom)
    [room] = answer.short
    assert (room.accelerator, room.free, room.total, room.needed) == (rig.gpu, 56 * MIB, 64 * MIB, 60 * MIB)
    assert room.resident == {other: 8 * MIB}
    assert _state(await rig.driver.state(pid, 5.0)) is DriverState.CHECKPOINTED


async def test_samples_name_processes_and_their_memory(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    sample = await rig.driver.sample([pid], 5.0)
    assert isinstance(sample, Sample)
    assert [device.index for device in sample.devices] == [0, 1]
    assert sample.devices[0].processes == {pid: 8 * MIB}
    assert sample.devices[1].processes == {}
    assert sample.states == {pid: DriverState.RUNNING}


async def test_without_figures_per_process_what_became_free_was_saved(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    rig.hide_figures()
    sample = await rig.driver.sample([], 5.0)
    assert isinstance(sample, Sample)
    assert sample.devices[0].processes == {pid: None}
    await rig.driver.lock(pid, 1000, 5.0)
    saved = await rig.driver.checkpoint(pid, [rig.gpu], 5.0)
    assert isinstance(saved, Done)
    assert saved.usage == {rig.gpu: 8 * MIB}


def _state(answer: object) -> DriverState:
    assert isinstance(answer, Done), answer
    return answer.state


def _code(answer: object) -> int:
    assert isinstance(answer, Refused), answer
    return answer.code


def _used(sample: object, gpu: AcceleratorId) -> int:
    assert isinstance(sample, Sample)
    return next(device.used for device in sample.devices if device.accelerator == gpu)
