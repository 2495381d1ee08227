"""A driver without a GPU: a small program with state that keeps the rules of the real one, and fails on demand.

Its contract is the real one's: tests/driver/test_driver_contract.py runs on both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.outcomes import Abandoned, Code, Done, DriverState, NoRoom, Refused, Room, Verb
from snapshot_agent_server.core.samples import DeviceSample, Sample
from snapshot_agent_server.driver.interface import margin_bytes


@dataclass(slots=True)
class FakeProcess:
    state: DriverState = DriverState.RUNNING
    memory: dict[AcceleratorId, int] = field(default_factory=dict)
    saved: dict[AcceleratorId, int] = field(default_factory=dict)
    is_drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: work is on the device, so that a lock waits."""


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

    async def state(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        if (fault := await self._fault(Verb.STATE, pid, timeout_s)) is not None:
            return fault
        process = self.processes.get(pid)
        return _refused(Code.INVALID_VALUE) if process is None else Done(process.state)

    async def lock(self, pid: int, lock_timeout_ms: int, timeout_s: float) -> Done | Refused | Abandoned:
        if lock_timeout_ms <= 0:
            raise ValueError("lock_timeout_ms must be above 0: the driver takes 0 as 'wait for ever'")
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

    async def checkpoint(
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

    async def restore(
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

    async def unlock(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        if (fault := await self._fault(Verb.UNLOCK, pid, timeout_s)) is not None:
            return fault
        process = self._in_state(pid, DriverState.LOCKED)
        if isinstance(process, Refused):
            return process
        process.state = DriverState.RUNNING
        return Done(process.state)

    async def states(self, pids: Sequence[int], timeout_s: float) -> Mapping[int, DriverState] | Abandoned:
        if self.is_silent_on_states:
            return Abandoned(f"no answer from the driver within {timeout_s:g} s")
        known = {pid: self.processes.get(pid) for pid in pids}
        return {pid: DriverState.NONE if process is None else process.state for pid, process in known.items()}

    async def sample(self, pids: Sequence[int], timeout_s: float) -> Sample | Abandoned:
        states = await self.states(pids, timeout_s)
        return states if isinstance(states, Abandoned) else Sample(self._clock(), self.devices(), states)

    async def close(self) -> None:
        pass

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
                await self.lock(pid, 1, 1.0)
            case Verb.CHECKPOINT:
                await self.checkpoint(pid, list(self._totals), 1.0)
            case Verb.RESTORE:
                await self.restore(pid, {}, 0, 1.0)
            case Verb.UNLOCK:
                await self.unlock(pid, 1.0)
            case Verb.STATE:
                pass


def _refused(code: Code) -> Refused:
    return Refused(code, f"CUDA_ERROR_{code.name}")
