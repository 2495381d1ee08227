"""A driver without a GPU: a small program with state that keeps the rules of the real one, and fails on demand.

Its contract is the real one's: tests/driver/test_driver_contract.py runs on both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from snapshot_agent_server.core.effects import Ahead, CallDriver
from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.outcomes import Abandoned, Code, Done, DriverState, NoRoom, Outcome, Refused, Room, Verb
from snapshot_agent_server.core.samples import DeviceSample, Sample
from snapshot_agent_server.driver.interface import Answered
from snapshot_agent_server.driver.margin import margin_bytes
from snapshot_agent_server.processes import proc


@dataclass(slots=True)
class FakeProcess:
    state: DriverState = DriverState.RUNNING
    memory: dict[AcceleratorId, int] = field(default_factory=dict)
    saved: dict[AcceleratorId, int] = field(default_factory=dict)
    is_drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: work is on the device, so that a lock waits."""


@dataclass(slots=True)
class FakeProgram:
    is_stopped: bool = False
    is_held: bool = False
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self.is_stopped = True
        self.told.set()

    def release(self) -> None:
        self.is_held = False
        self.told.set()

    async def wait(self, time_s: float) -> None:
        """Until it is no longer held, or is stopped, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                while self.is_held and not self.is_stopped:
                    self.told.clear()
                    await self.told.wait()


@dataclass(slots=True)
class Fault:
    """`times` calls of this verb to this process (None: any) fail with `code`; 0: they hang until abandoned, and take
    effect all the same if `is_late`."""

    verb: Verb
    pid: int | None = None
    code: int = 0
    times: int = 1
    is_late: bool = False


class FakeDriver:
    def __init__(self, devices: Mapping[AcceleratorId, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._totals = dict(devices)
        self._clock = clock
        self.processes: dict[int, FakeProcess] = {}
        self.faults: list[Fault] = []
        self.calls: list[tuple[Verb, int]] = []
        self.shows_memory = True
        """False: NVML gives no figure per process ("N/A")."""
        self.lists_processes = True
        self.is_silent_on_states = False
        """The question for the states of several processes hangs."""
        self.own_pids: set[int] = set()
        self._running: set[asyncio.Task[None]] = set()

    def add(self, pid: int, memory: Mapping[AcceleratorId, int]) -> FakeProcess:
        """A process initialises CUDA and allocates."""
        process = FakeProcess(memory=dict(memory))
        process.is_drained.set()
        self.processes[pid] = process
        return process

    def end(self, pid: int) -> None:
        self.processes.pop(pid, None)

    def free(self, accelerator: AcceleratorId) -> int:
        return self._totals[accelerator] - sum(p.memory.get(accelerator, 0) for p in self.processes.values())

    def devices(self) -> tuple[DeviceSample, ...]:
        return tuple(
            DeviceSample(
                accelerator,
                index=index,
                name="Fake GPU",
                total=total,
                used=total - self.free(accelerator),
                processes={
                    pid: process.memory[accelerator] if self.shows_memory else None
                    for pid, process in self.processes.items()
                    if accelerator in process.memory and self.lists_processes
                },
            )
            for index, (accelerator, total) in enumerate(self._totals.items())
        )

    def begin(self, call: CallDriver, answered: Answered, *, is_held: bool = False) -> FakeProgram:
        """See Driver.begin."""
        for one in (call, *call.then):
            if one.verb is Verb.LOCK and one.lock_timeout_ms <= 0:
                raise ValueError("lock_timeout_ms must be above 0: the driver takes 0 as 'wait for ever'")
        program = FakeProgram(is_held=is_held)
        running = asyncio.get_running_loop().create_task(self._run((call, *call.then), answered, program))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return program

    async def states(self, pids: Sequence[int], timeout_s: float) -> Mapping[int, DriverState] | Abandoned:
        if self.is_silent_on_states:
            return Abandoned(f"no answer from the driver within {timeout_s:g} s")
        known = {pid: self.processes.get(pid) for pid in pids}
        return {pid: DriverState.NONE if process is None else process.state for pid, process in known.items()}

    async def sample(self, pids: Sequence[int], timeout_s: float) -> Sample | Abandoned:
        states = await self.states(pids, timeout_s)
        return states if isinstance(states, Abandoned) else Sample(self._clock(), self.devices(), states)

    async def close(self) -> None:
        for running in self._running:
            running.cancel()

    async def _run(self, calls: Sequence[CallDriver], answered: Answered, program: FakeProgram) -> None:
        outcome = await self._make(calls[0], calls[0].timeout_s)
        for before, call in itertools.pairwise(calls):
            assert call.not_after is not None, "a call that follows another one has a time after which it may not begin"
            if call.ahead_of is not Ahead.ORDER and isinstance(outcome, Done):
                await program.wait(call.not_after - self._clock())
            now = self._clock()  # one that is held still is past its time
            may_begin = not program.is_stopped and now < call.not_after and proc.can_be_asked(call.process)
            if not isinstance(outcome, Done) or not may_begin:
                answered(before, outcome, None)
                return
            answered(before, outcome, call)
            is_move = call.verb in (Verb.CHECKPOINT, Verb.RESTORE)
            outcome = await self._make(call, max(call.not_after - now, 0.05) if is_move else call.timeout_s)
        answered(calls[-1], outcome, None)

    async def _make(self, call: CallDriver, timeout_s: float) -> Outcome:
        pid = call.process.pid
        match call.verb:
            case Verb.STATE:
                return await self._state(pid, timeout_s)
            case Verb.LOCK:
                return await self._lock(pid, call.lock_timeout_ms, timeout_s)
            case Verb.CHECKPOINT:
                return await self._checkpoint(pid, call.accelerators, timeout_s)
            case Verb.RESTORE:
                return await self._restore(pid, call.need or {}, call.margin, timeout_s)
            case Verb.UNLOCK:
                return await self._unlock(pid, timeout_s)
            case _:
                assert_never(call.verb)

    async def _state(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        if (fault := await self._fault(Verb.STATE, pid, timeout_s)) is not None:
            return fault
        process = self.processes.get(pid)
        return _refused(Code.INVALID_VALUE) if process is None else Done(process.state)

    async def _lock(self, pid: int, lock_timeout_ms: int, timeout_s: float) -> Done | Refused | Abandoned:
        if (fault := await self._fault(Verb.LOCK, pid, timeout_s)) is not None:
            return fault
        process = self._in_state(pid, DriverState.RUNNING)
        if isinstance(process, Refused):
            return process
        try:
            async with asyncio.timeout(lock_timeout_ms / 1000):
                await process.is_drained.wait()
        except TimeoutError:
            return _refused(Code.NOT_READY)
        process.state = DriverState.LOCKED
        return Done(DriverState.LOCKED)

    async def _checkpoint(
        self, pid: int, accelerators: Sequence[AcceleratorId], timeout_s: float
    ) -> Done | Refused | Abandoned:
        if (fault := await self._fault(Verb.CHECKPOINT, pid, timeout_s)) is not None:
            return fault
        process = self._in_state(pid, DriverState.LOCKED)
        if isinstance(process, Refused):
            return process
        process.saved, process.memory = process.memory, {}
        process.state = DriverState.CHECKPOINTED
        return Done(process.state, usage={a: size for a, size in process.saved.items() if a in accelerators})

    async def _restore(
        self, pid: int, need: Mapping[AcceleratorId, int], margin: int | None, timeout_s: float
    ) -> Done | Refused | NoRoom | Abandoned:
        short = []
        for device in self.devices():
            needed = need.get(device.accelerator, 0) + margin_bytes(margin, device.total)
            if device.accelerator in need and self.free(device.accelerator) < needed:
                free = self.free(device.accelerator)
                short.append(Room(device.accelerator, free, device.total, needed, device.processes))
        if short:
            return NoRoom(tuple(short))
        if (fault := await self._fault(Verb.RESTORE, pid, timeout_s)) is not None:
            return fault
        process = self._in_state(pid, DriverState.CHECKPOINTED)
        if isinstance(process, Refused):
            return process
        if any(size > self.free(a) for a, size in process.saved.items()):
            process.state = DriverState.FAILED
            return _refused(Code.OUT_OF_MEMORY)
        process.memory, process.saved = process.saved, {}
        process.state = DriverState.LOCKED
        return Done(process.state)

    async def _unlock(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        if (fault := await self._fault(Verb.UNLOCK, pid, timeout_s)) is not None:
            return fault
        process = self._in_state(pid, DriverState.LOCKED)
        if isinstance(process, Refused):
            return process
        process.state = DriverState.RUNNING
        return Done(process.state)

    def _in_state(self, pid: int, state: DriverState) -> FakeProcess | Refused:
        process = self.processes.get(pid)
        if process is None:
            return _refused(Code.INVALID_VALUE)
        return process if process.state is state else _refused(Code.ILLEGAL_STATE)

    async def _fault(self, verb: Verb, pid: int, timeout_s: float) -> Refused | Abandoned | None:
        self.calls.append((verb, pid))
        for fault in self.faults:
            if fault.verb is verb and fault.pid in (None, pid) and fault.times > 0:
                fault.times -= 1
                if fault.code:
                    return Refused(fault.code, f"injected {fault.code}")
                try:
                    async with asyncio.timeout(timeout_s):
                        await asyncio.Event().wait()
                except TimeoutError:
                    if fault.is_late:
                        await self._late(verb, pid)
                    return Abandoned(f"no answer from the driver within {timeout_s:g} s")
        return None

    async def _late(self, verb: Verb, pid: int) -> None:
        match verb:
            case Verb.LOCK:
                await self._lock(pid, 1, 1.0)
            case Verb.CHECKPOINT:
                await self._checkpoint(pid, list(self._totals), 1.0)
            case Verb.RESTORE:
                await self._restore(pid, {}, 0, 1.0)
            case Verb.UNLOCK:
                await self._unlock(pid, 1.0)
            case Verb.STATE:
                pass


def _refused(code: Code) -> Refused:
    return Refused(code, f"CUDA_ERROR_{code.name}")
