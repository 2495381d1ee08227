"""The real driver: calls go to warm worker processes, errors come back as data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.outcomes import Abandoned, Done, DriverState, NoRoom, Refused, Room
from snapshot_agent_server.core.samples import DeviceSample, Sample
from snapshot_agent_server.driver.interface import DriverMissing
from snapshot_agent_server.driver.pool import Pool, WorkerDied
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

    async def state(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        reply = await self._call("state", timeout_s, pid=pid)
        if isinstance(reply, dict):
            return Done(_state(str(reply["state"])), int(reply["took_us"]))
        return reply

    async def lock(self, pid: int, lock_timeout_ms: int, timeout_s: float) -> Done | Refused | Abandoned:
        if lock_timeout_ms <= 0:
            raise ValueError("lock_timeout_ms must be above 0: the driver takes 0 as 'wait for ever'")
        reply = await self._call("lock", timeout_s, pid=pid, timeout_ms=lock_timeout_ms)
        return Done(DriverState.LOCKED, int(reply["took_us"])) if isinstance(reply, dict) else reply

    async def checkpoint(
        self, pid: int, accelerators: Sequence[AcceleratorId], timeout_s: float
    ) -> Done | Refused | Abandoned:
        reply = await self._call("checkpoint", timeout_s, pid=pid, accelerators=list(accelerators))
        if isinstance(reply, dict):
            usage = {AcceleratorId(a): int(size) for a, size in reply["usage"].items()}
            return Done(DriverState.CHECKPOINTED, int(reply["took_us"]), usage)
        return reply

    async def restore(
        self, pid: int, need: Mapping[AcceleratorId, int], margin: int | None, timeout_s: float
    ) -> Done | Refused | NoRoom | Abandoned:
        reply = await self._call("restore", timeout_s, pid=pid, need=dict(need), margin=margin)
        if not isinstance(reply, dict):
            return reply
        if "short" in reply:
            return NoRoom(
                tuple(
                    Room(
                        AcceleratorId(room["accelerator"]),
                        free=room["free"],
                        total=room["total"],
                        needed=room["needed"],
                        resident={pid: size for pid, size in room["resident"]},
                    )
                    for room in reply["short"]
                )
            )
        return Done(DriverState.LOCKED, int(reply["took_us"]))

    async def unlock(self, pid: int, timeout_s: float) -> Done | Refused | Abandoned:
        reply = await self._call("unlock", timeout_s, pid=pid)
        return Done(DriverState.RUNNING, int(reply["took_us"])) if isinstance(reply, dict) else reply

    async def states(self, pids: Sequence[int], timeout_s: float) -> Mapping[int, DriverState] | Abandoned:
        reply = await self._call("states", timeout_s, pids=list(pids))
        if isinstance(reply, dict):
            return _states(reply)
        return reply if isinstance(reply, Abandoned) else Abandoned(reply.name)

    async def sample(self, pids: Sequence[int], timeout_s: float) -> Sample | Abandoned:
        taken_at = self._clock()
        reply = await self._call("sample", timeout_s, pids=list(pids))
        if isinstance(reply, Refused):
            return Abandoned(reply.name)
        if isinstance(reply, Abandoned):
            return reply
        return Sample(taken_at, _devices(reply, leave_out=self.own_pids), _states(reply))

    async def close(self) -> None:
        await self._pool.close()

    async def _call(self, name: str, timeout_s: float, **args: object) -> Message | Refused | Abandoned:
        try:
            reply = await self._pool.call({"call": name, "args": args}, timeout_s)
        except TimeoutError:
            return Abandoned(f"no answer from the driver within {timeout_s:g} s")
        except (WorkerDied, DriverMissing) as error:
            return Abandoned(str(error))
        if "refused" in reply:
            code, text = reply["refused"]
            return Refused(int(code), str(text), int(reply["took_us"]))
        return reply


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
