"""The real driver: calls go to warm worker processes, errors come back as data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from snapshot_agent_server.core.effects import Ahead, CallDriver
from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.outcomes import (
    RESULT_OF,
    Abandoned,
    Done,
    DriverState,
    NoRoom,
    Outcome,
    Refused,
    Room,
    Verb,
)
from snapshot_agent_server.core.samples import DeviceSample, Sample
from snapshot_agent_server.driver.interface import Answered, DriverMissing
from snapshot_agent_server.driver.pool import Exchange, Pool, WorkerDied
from snapshot_agent_server.driver.wire import Message

_STATES = {
    "RUNNING": DriverState.RUNNING,
    "LOCKED": DriverState.LOCKED,
    "CHECKPOINTED": DriverState.CHECKPOINTED,
    "FAILED": DriverState.FAILED,
    "CHECKPOINTING": DriverState.BUSY,
    "RESTORING": DriverState.BUSY,
}
"""Source: cuda.h, enum CUprocessState; the last two are new with CUDA 13.1."""

MOVES = (Verb.CHECKPOINT, Verb.RESTORE)
SHORTEST_S = 0.05
"""What a call that was begun right before its time came gets to answer."""


class CudaDriver:
    def __init__(self, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock

    async def start(self) -> None:
        """Raises: DriverMissing."""
        await self._pool.start()

    @property
    def own_pids(self) -> set[int]:
        """Our workers: what NVML shows of them is no job's."""
        return self._pool.pids

    def devices(self) -> tuple[DeviceSample, ...]:
        """The accelerators of the node, as the first worker found them."""
        return _devices(self._pool.first_word)

    def begin(self, call: CallDriver, answered: Answered, *, is_held: bool = False) -> Exchange:
        """See Driver.begin."""
        request = _step(call)
        if call.then:
            request["then"] = [
                {**_step(later), "is_held": is_held and later.ahead_of is not Ahead.ORDER} for later in call.then
            ]
        return self._pool.begin(request, call.timeout_s, _Answers((call, *call.then), answered, self._clock))

    async def states(self, pids: Sequence[int], timeout_s: float) -> Mapping[int, DriverState] | Abandoned:
        reply = await self._call("states", timeout_s, list(pids))
        if isinstance(reply, dict):
            return _states(reply)
        return reply if isinstance(reply, Abandoned) else Abandoned(reply.name)

    async def sample(self, pids: Sequence[int], timeout_s: float) -> Sample | Abandoned:
        taken_at = self._clock()
        reply = await self._call("sample", timeout_s, list(pids))
        if isinstance(reply, Refused):
            return Abandoned(reply.name)
        if isinstance(reply, Abandoned):
            return reply
        return Sample(taken_at, _devices(reply, leave_out=self.own_pids), _states(reply))

    async def close(self) -> None:
        await self._pool.close()

    async def _call(self, name: str, timeout_s: float, *args: object) -> Message | Refused | Abandoned:
        try:
            reply = await self._pool.call({"call": name, "args": list(args)}, timeout_s)
        except TimeoutError:
            return Abandoned(f"no answer from the driver within {timeout_s:g} s")
        except (WorkerDied, DriverMissing) as error:
            return Abandoned(str(error))
        if "refused" in reply:
            code, text = reply["refused"]
            return Refused(int(code), str(text), int(reply["took_us"]))
        return reply


class _Answers:
    """Tells of each call of a program what came of it."""

    __slots__ = ("_answered", "_at", "_calls", "_clock", "_limit_s")

    def __init__(self, calls: Sequence[CallDriver], answered: Answered, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._answered = answered
        self._clock = clock
        self._at = 0
        self._limit_s = calls[0].timeout_s

    def __call__(self, reply: Message | WorkerDied | TimeoutError | DriverMissing) -> float | None:
        """How long the next call may take, if there is one."""
        call = self._calls[self._at]
        if isinstance(reply, TimeoutError):
            self._answered(call, Abandoned(f"no answer from the driver within {self._limit_s:g} s"), None)
        elif isinstance(reply, Exception):
            self._answered(call, Abandoned(str(reply)), None)
        elif not reply.get("goes_on"):
            self._answered(call, _outcome(call, reply), None)
        else:
            self._at += 1
            begun = self._calls[self._at]
            self._limit_s = _limit_s(begun, self._clock())
            self._answered(call, _outcome(call, reply), begun)
            return self._limit_s
        return None


def _limit_s(call: CallDriver, now: float) -> float:
    """What a later call of a program may take, from now on."""
    if call.not_after is None or call.verb not in MOVES:
        return call.timeout_s
    return max(call.not_after - now, SHORTEST_S)


def _step(call: CallDriver) -> Message:
    """A call as the worker reads it."""
    pid = call.process.pid
    args: list[object]
    match call.verb:
        case Verb.STATE | Verb.UNLOCK:
            args = [pid]
        case Verb.LOCK:
            if call.lock_timeout_ms <= 0:
                raise ValueError("lock_timeout_ms must be above 0: the driver takes 0 as 'wait for ever'")
            args = [pid, call.lock_timeout_ms]
        case Verb.CHECKPOINT:
            args = [pid, list(call.accelerators)]
        case Verb.RESTORE:
            args = [pid, dict(call.need or {}), call.margin]
        case _:
            assert_never(call.verb)
    step: Message = {"call": call.verb.value, "args": args}
    if call.not_after is not None:
        step["not_after"] = call.not_after
        step["start_time"] = call.process.start_time
    return step


def _outcome(call: CallDriver, reply: Message) -> Outcome:
    took_us = int(reply.get("took_us", 0))
    if "refused" in reply:
        code, text = reply["refused"]
        return Refused(int(code), str(text), took_us)
    match call.verb:
        case Verb.STATE:
            return Done(_state(reply["state"]), took_us)
        case Verb.CHECKPOINT:
            usage = {AcceleratorId(a): int(size) for a, size in reply["usage"].items()}
            return Done(DriverState.CHECKPOINTED, took_us, usage)
        case Verb.RESTORE if "short" in reply:
            return NoRoom(tuple(_room(room) for room in reply["short"]))
        case _:
            return Done(RESULT_OF[call.verb], took_us)


def _room(room: Message) -> Room:
    return Room(
        AcceleratorId(room["accelerator"]),
        free=room["free"],
        total=room["total"],
        needed=room["needed"],
        resident={pid: size for pid, size in room["resident"]},
    )


def _state(name: str) -> DriverState:
    return _STATES.get(name, DriverState.UNKNOWN)


def _states(message: Message) -> dict[int, DriverState]:
    return {pid: DriverState.NONE if state is None else _state(state) for pid, state in message["states"]}


def _devices(message: Message, leave_out: set[int] | frozenset[int] = frozenset()) -> tuple[DeviceSample, ...]:
    return tuple(
        DeviceSample(
            AcceleratorId(device["accelerator"]),
            index=device["index"],
            name=device["name"],
            total=device["total"],
            used=device["used"],
            utilization=device["utilization"],
            processes={pid: size for pid, size in device["processes"] if pid not in leave_out},
        )
        for device in message["devices"]
    )
