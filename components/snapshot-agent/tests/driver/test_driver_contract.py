"""What any driver promises: one suite for the fake and for the real one on the GPU mock."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mock_machine import MockMachine, TargetProcess
from node_under_test import GPU, GPU1, MIB, Targets
from snapshot_agent_server.core.effects import Ahead, CallDriver
from snapshot_agent_server.core.ids import AcceleratorId, OperationId
from snapshot_agent_server.core.outcomes import Abandoned, Code, Done, DriverState, NoRoom, Outcome, Refused, Verb
from snapshot_agent_server.core.samples import Sample
from snapshot_agent_server.driver.cuda_driver import CudaDriver
from snapshot_agent_server.driver.fake import FakeDriver, Fault
from snapshot_agent_server.driver.interface import Driver, Program, outcome_of
from snapshot_agent_server.driver.pool import Pool
from snapshot_agent_server.processes import proc

IN_TIME = math.inf
"""Of a step that may begin at any time."""


class Rig(ABC):
    """A driver, and the means to put processes and faults under it."""

    driver: Driver
    gpu: AcceleratorId

    async def state(self, pid: int) -> Outcome:
        return await outcome_of(self.driver, self.call(pid, Verb.STATE))

    async def lock(self, pid: int, lock_timeout_ms: int = 1000, timeout_s: float = 5.0) -> Outcome:
        call = self.call(pid, Verb.LOCK, lock_timeout_ms=lock_timeout_ms)
        return await outcome_of(self.driver, replace(call, timeout_s=timeout_s))

    async def checkpoint(self, pid: int, accelerators: Sequence[AcceleratorId]) -> Outcome:
        return await outcome_of(self.driver, self.call(pid, Verb.CHECKPOINT, accelerators=tuple(accelerators)))

    async def restore(self, pid: int, need: Mapping[AcceleratorId, int], margin: int | None) -> Outcome:
        return await outcome_of(self.driver, self.call(pid, Verb.RESTORE, need=need, margin=margin))

    async def unlock(self, pid: int) -> Outcome:
        return await outcome_of(self.driver, self.call(pid, Verb.UNLOCK))

    def call(self, pid: int, verb: Verb, **fields: Any) -> CallDriver:
        found = proc.facts(pid)
        assert found is not None
        return CallDriver(OperationId("o"), found.id, verb, timeout_s=5.0, **fields)

    def begin(
        self, first: CallDriver, *later: CallDriver, is_held: bool = False
    ) -> tuple[Program, asyncio.Queue[tuple[Verb, Outcome, bool]]]:
        """A program, and what is heard of it."""
        heard: asyncio.Queue[tuple[Verb, Outcome, bool]] = asyncio.Queue()

        def answered(call: CallDriver, outcome: Outcome, begun: CallDriver | None) -> None:
            heard.put_nowait((call.verb, outcome, begun is not None))

        then = tuple(call if call.not_after is not None else replace(call, not_after=IN_TIME) for call in later)
        return self.driver.begin(replace(first, then=then), answered, is_held=is_held), heard

    @abstractmethod
    async def process(self, size: int | None) -> int: ...

    @abstractmethod
    def fail(self, verb: Verb, code: int) -> None: ...

    @abstractmethod
    def hang(self, verb: Verb) -> None: ...

    @abstractmethod
    def hide_figures(self) -> None: ...

    @abstractmethod
    async def busy(self, pid: int, for_ms: int = 3000) -> None:
        """What it has launched is not done for so long."""

    @abstractmethod
    async def close(self) -> None: ...


class FakeRig(Rig):
    def __init__(self) -> None:
        self.driver = FakeDriver({GPU: 64 * MIB, GPU1: 64 * MIB})
        self.gpu = GPU
        self._targets = Targets()

    async def process(self, size: int | None) -> int:
        pid = self._targets.start().pid
        if size is not None:
            self.driver.add(pid, {GPU: size})
        return pid

    def fail(self, verb: Verb, code: int) -> None:
        self.driver.faults.append(Fault(verb, code=code))

    def hang(self, verb: Verb) -> None:
        self.driver.faults.append(Fault(verb))

    def hide_figures(self) -> None:
        self.driver.shows_memory = False

    async def busy(self, pid: int, for_ms: int = 3000) -> None:
        drained = self.driver.processes[pid].is_drained
        drained.clear()
        asyncio.get_running_loop().call_later(for_ms / 1000, drained.set)

    async def close(self) -> None:
        await self.driver.close()
        self._targets.close()


class MockRig(Rig):
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

    async def busy(self, pid: int, for_ms: int = 3000) -> None:
        assert await self._targets[pid].tell("busy", for_ms) == "ok"

    async def close(self) -> None:
        await self.driver.close()
        await self.machine.close()

    def _name(self, verb: Verb) -> str:
        return "get-state" if verb is Verb.STATE else str(verb)


@pytest_asyncio.fixture(params=["fake", "mock"])
async def rig(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    if request.param == "fake":
        fake = FakeRig()
        yield fake
        await fake.close()
        return
    for name in ("TIMESLICE_GPU_MOCK_DIR", "TIMESLICE_GPU_MOCK", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back what the rig sets
    rig = MockRig(tmp_path / "m")
    await rig.driver.start()
    yield rig
    await rig.close()


async def test_a_process_goes_round(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    assert _state(await rig.state(pid)) is DriverState.RUNNING
    assert _state(await rig.lock(pid, 1000)) is DriverState.LOCKED
    saved = await rig.checkpoint(pid, [rig.gpu])
    assert isinstance(saved, Done)
    assert saved.usage == {rig.gpu: 8 * MIB}
    assert _state(await rig.state(pid)) is DriverState.CHECKPOINTED
    assert _used(await rig.driver.sample([], 5.0), rig.gpu) == 0
    assert _state(await rig.restore(pid, {rig.gpu: 8 * MIB}, 0)) is DriverState.LOCKED
    assert _used(await rig.driver.sample([], 5.0), rig.gpu) == 8 * MIB
    assert _state(await rig.unlock(pid)) is DriverState.RUNNING


async def test_the_wrong_order_is_an_illegal_state(rig: Rig) -> None:
    pid = await rig.process(MIB)
    assert _code(await rig.checkpoint(pid, [])) == Code.ILLEGAL_STATE
    assert _code(await rig.restore(pid, {}, 0)) == Code.ILLEGAL_STATE
    assert _code(await rig.unlock(pid)) == Code.ILLEGAL_STATE
    await rig.lock(pid, 1000)
    assert _code(await rig.lock(pid, 1000)) == Code.ILLEGAL_STATE


async def test_a_process_without_cuda_is_an_invalid_value(rig: Rig) -> None:
    pid = await rig.process(None)
    assert _code(await rig.state(pid)) == Code.INVALID_VALUE
    assert _code(await rig.lock(pid, 1000)) == Code.INVALID_VALUE
    sample = await rig.driver.sample([pid], 5.0)
    assert isinstance(sample, Sample)
    assert sample.states == {pid: DriverState.NONE}


async def test_the_states_of_several_processes_come_in_one_answer(rig: Rig) -> None:
    running, locked, without = await rig.process(MIB), await rig.process(MIB), await rig.process(None)
    await rig.lock(locked, 1000)
    states = await rig.driver.states([running, locked, without], 5.0)
    assert states == {running: DriverState.RUNNING, locked: DriverState.LOCKED, without: DriverState.NONE}


async def test_a_lock_of_a_busy_process_times_out_and_it_runs_on(rig: Rig) -> None:
    pid = await rig.process(MIB)
    await rig.busy(pid)
    assert _code(await rig.lock(pid, 100)) == Code.NOT_READY
    assert _state(await rig.state(pid)) is DriverState.RUNNING


async def test_a_lock_without_a_time_limit_is_refused(rig: Rig) -> None:
    with pytest.raises(ValueError, match="wait for ever"):
        await rig.lock(await rig.process(MIB), 0)


@pytest.mark.parametrize("verb", [Verb.LOCK, Verb.STATE])
async def test_what_the_driver_refuses_comes_back_as_data(rig: Rig, verb: Verb) -> None:
    pid = await rig.process(MIB)
    rig.fail(verb, 3)
    answer = await (rig.state(pid) if verb is Verb.STATE else rig.lock(pid, 1000))
    assert _code(answer) == Code.NOT_INITIALIZED


async def test_a_call_that_hangs_is_abandoned_and_the_next_one_works(rig: Rig) -> None:
    pid = await rig.process(MIB)
    rig.hang(Verb.LOCK)
    assert isinstance(await rig.lock(pid, 100, 0.3), Abandoned)
    assert _state(await rig.state(pid)) is DriverState.RUNNING


async def test_a_restore_without_room_is_not_tried(rig: Rig) -> None:
    pid, other = await rig.process(40 * MIB), await rig.process(8 * MIB)
    await rig.lock(pid, 1000)
    await rig.checkpoint(pid, [rig.gpu])
    answer = await rig.restore(pid, {rig.gpu: 40 * MIB}, 20 * MIB)
    assert isinstance(answer, NoRoom)
    [room] = answer.short
    assert (room.accelerator, room.free, room.total, room.needed) == (rig.gpu, 56 * MIB, 64 * MIB, 60 * MIB)
    assert room.resident == {other: 8 * MIB}
    assert _state(await rig.state(pid)) is DriverState.CHECKPOINTED


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
    await rig.lock(pid, 1000)
    saved = await rig.checkpoint(pid, [rig.gpu])
    assert isinstance(saved, Done)
    assert saved.usage == {rig.gpu: 8 * MIB}


async def test_a_program_goes_on_by_itself_and_each_step_is_answered(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    _, heard = rig.begin(
        rig.call(pid, Verb.LOCK, lock_timeout_ms=1000),
        rig.call(pid, Verb.CHECKPOINT, accelerators=(rig.gpu,)),
        rig.call(pid, Verb.RESTORE, need={rig.gpu: 8 * MIB}, margin=0),
        rig.call(pid, Verb.UNLOCK),
    )
    told = [await _next(heard) for _ in range(4)]
    assert [(verb, goes_on) for verb, _, goes_on in told] == [
        (Verb.LOCK, True),
        (Verb.CHECKPOINT, True),
        (Verb.RESTORE, True),
        (Verb.UNLOCK, False),
    ]
    saved = told[1][1]
    assert isinstance(saved, Done)
    assert saved.usage == {rig.gpu: 8 * MIB}
    assert _state(await rig.state(pid)) is DriverState.RUNNING


async def test_a_step_that_fails_is_the_last_of_its_program(rig: Rig) -> None:
    pid, other = await rig.process(8 * MIB), await rig.process(MIB)
    _, heard = rig.begin(rig.call(pid, Verb.CHECKPOINT), rig.call(other, Verb.LOCK, lock_timeout_ms=1000))
    verb, outcome, goes_on = await _next(heard)
    assert (verb, _code(outcome), goes_on) == (Verb.CHECKPOINT, Code.ILLEGAL_STATE, False)
    assert _state(await rig.state(other)) is DriverState.RUNNING


async def test_a_step_that_hangs_is_abandoned_at_its_own_limit_and_is_the_last(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    rig.hang(Verb.CHECKPOINT)
    late = time.monotonic() + 0.4
    checkpoint = rig.call(pid, Verb.CHECKPOINT, not_after=late)
    _, heard = rig.begin(rig.call(pid, Verb.LOCK, lock_timeout_ms=1000), checkpoint, rig.call(pid, Verb.RESTORE))
    assert (await _next(heard))[2]
    verb, outcome, goes_on = await _next(heard)
    assert (verb, goes_on) == (Verb.CHECKPOINT, False)
    assert isinstance(outcome, Abandoned)
    assert late <= time.monotonic() < late + 2.0


async def test_a_step_whose_time_has_come_is_not_begun(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    too_late = rig.call(pid, Verb.CHECKPOINT, not_after=time.monotonic())
    _, heard = rig.begin(rig.call(pid, Verb.LOCK, lock_timeout_ms=1000), too_late)
    verb, outcome, goes_on = await _next(heard)
    assert (verb, _state(outcome), goes_on) == (Verb.LOCK, DriverState.LOCKED, False)
    assert _state(await rig.state(pid)) is DriverState.LOCKED


async def test_a_stopped_process_is_not_begun_with(rig: Rig) -> None:
    pid, other = await rig.process(8 * MIB), await rig.process(MIB)
    await asyncio.to_thread(_stop, other)
    lock = rig.call(other, Verb.LOCK, lock_timeout_ms=1000)
    _, heard = rig.begin(rig.call(pid, Verb.LOCK, lock_timeout_ms=1000), lock)
    assert (await _next(heard))[2] is False
    os.kill(other, signal.SIGCONT)
    assert _state(await rig.state(other)) is DriverState.RUNNING


async def test_a_later_process_with_the_same_pid_is_not_begun_with(rig: Rig) -> None:
    pid, other = await rig.process(8 * MIB), await rig.process(MIB)
    lock = rig.call(other, Verb.LOCK, lock_timeout_ms=1000)
    of_another = replace(lock, process=replace(lock.process, start_time=lock.process.start_time - 1))
    _, heard = rig.begin(rig.call(pid, Verb.LOCK, lock_timeout_ms=1000), of_another)
    assert (await _next(heard))[2] is False
    assert _state(await rig.state(other)) is DriverState.RUNNING


async def test_a_program_that_is_stopped_goes_no_further(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    await rig.busy(pid, 300)
    program, heard = rig.begin(rig.call(pid, Verb.LOCK, lock_timeout_ms=5000), rig.call(pid, Verb.UNLOCK))
    program.stop()  # while it waits for the lock
    verb, outcome, goes_on = await _next(heard)
    assert (verb, _state(outcome), goes_on) == (Verb.LOCK, DriverState.LOCKED, False)
    assert _state(await rig.state(pid)) is DriverState.LOCKED
    program.stop()  # too late: it changes nothing, the next call neither
    assert _state(await rig.unlock(pid)) is DriverState.RUNNING


async def test_what_is_held_waits_for_its_release_and_what_may_go_ahead_does_not(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    program, heard = rig.begin(*_order_and_more(rig, pid), is_held=True)
    assert (await _next(heard))[::2] == (Verb.LOCK, True)
    await _until(rig, pid, DriverState.CHECKPOINTED)
    assert heard.empty(), "whether the next one begins is not known yet"
    program.release()
    assert (await _next(heard))[::2] == (Verb.CHECKPOINT, True)
    assert (await _next(heard))[::2] == (Verb.RESTORE, False)
    assert _state(await rig.state(pid)) is DriverState.LOCKED


async def test_what_was_released_before_its_turn_goes_on_by_itself(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    await rig.busy(pid, 300)
    program, heard = rig.begin(*_order_and_more(rig, pid), is_held=True)
    program.release()  # while it waits for the lock
    assert [(await _next(heard))[::2] for _ in range(3)] == [
        (Verb.LOCK, True),
        (Verb.CHECKPOINT, True),
        (Verb.RESTORE, False),
    ]
    program.release()  # too late: it changes nothing, the next call neither
    assert _state(await rig.unlock(pid)) is DriverState.RUNNING


async def test_what_is_held_can_be_stopped(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    program, heard = rig.begin(*_order_and_more(rig, pid), is_held=True)
    await _next(heard)
    await _until(rig, pid, DriverState.CHECKPOINTED)
    program.stop()
    assert (await _next(heard))[::2] == (Verb.CHECKPOINT, False)
    assert _state(await rig.state(pid)) is DriverState.CHECKPOINTED


async def test_what_is_held_past_its_time_is_not_begun(rig: Rig) -> None:
    pid = await rig.process(8 * MIB)
    lock, checkpoint, restore = _order_and_more(rig, pid)
    late = time.monotonic() + 0.3
    _, heard = rig.begin(lock, checkpoint, replace(restore, not_after=late), is_held=True)
    await _next(heard)
    assert (await _next(heard))[::2] == (Verb.CHECKPOINT, False)
    assert time.monotonic() >= late
    assert _state(await rig.state(pid)) is DriverState.CHECKPOINTED


def _order_and_more(rig: Rig, pid: int) -> tuple[CallDriver, CallDriver, CallDriver]:
    return (
        rig.call(pid, Verb.LOCK, lock_timeout_ms=5000, ahead_of=Ahead.ORDER),
        rig.call(pid, Verb.CHECKPOINT, accelerators=(rig.gpu,), ahead_of=Ahead.ORDER),
        rig.call(pid, Verb.RESTORE, need={rig.gpu: 8 * MIB}, margin=0),
    )


async def _until(rig: Rig, pid: int, state: DriverState) -> None:
    async with asyncio.timeout(10.0):
        while _state(await rig.state(pid)) is not state:  # noqa: ASYNC110 - no driver tells by itself
            await asyncio.sleep(0)


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


async def _next(heard: asyncio.Queue[tuple[Verb, Outcome, bool]]) -> tuple[Verb, Outcome, bool]:
    async with asyncio.timeout(10.0):
        return await heard.get()


def _state(answer: object) -> DriverState:
    assert isinstance(answer, Done), answer
    return answer.state


def _code(answer: object) -> int:
    assert isinstance(answer, Refused), answer
    return answer.code


def _used(sample: object, gpu: AcceleratorId) -> int:
    assert isinstance(sample, Sample)
    return next(device.used for device in sample.devices if device.accelerator == gpu)
