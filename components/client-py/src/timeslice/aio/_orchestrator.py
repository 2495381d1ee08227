"""The client of the orchestrator for asyncio."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from timeslice._aio.channels import open_channel
from timeslice._aio.engine import Engine
from timeslice._channel import ORCHESTRATOR_SERVICE_CONFIG
from timeslice._core.calls import Patience
from timeslice._core.client import ClientConfig, check_group_ids
from timeslice._core.telling import Listeners
from timeslice.orchestrator.types import (
    AcquireResult,
    LostLease,
    OrchestratorGroupStatus,
    RevokeNotice,
    SharedLease,
    YieldResult,
)
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

AsyncFunction = TypeVar("AsyncFunction", bound=Callable[..., Coroutine[Any, Any, Any]])


class TimeSliceOrchestratorClient:
    """Takes groups of accelerators for a job, and gives them back.

    Made cheaply, anywhere: it connects at the first call, and belongs to the event loop of that call. While it holds or
    waits for a group, a task of its own keeps the job's session alive; a loop that is blocked for long holds that up.
    Close it, or use `async with`. When the event loop ends first, it gives back what it holds. It does not survive a
    fork.
    """

    def __init__(
        self,
        target: str | None = None,
        job_id: str | None = None,
        group_id: str | None = None,
        channel_options: list[tuple[str, Any]] | None = None,
        *,
        session_ttl_s: float = 30.0,
        connect_timeout_s: float = Patience.connect_timeout_s,
        unreachable_timeout_s: float = Patience.unreachable_timeout_s,
        wait_slice_s: float = Patience.slice_s,
        use_sessions: bool = True,
        on_revoke: Callable[[RevokeNotice], Any] | None = None,
        on_lost: Callable[[LostLease], Any] | None = None,
        on_shared: Callable[[SharedLease], Any] | None = None,
    ) -> None:
        """As `timeslice.TimeSliceOrchestratorClient`. A callback may be a coroutine function, which runs on the event
        loop, or a plain one, which runs in a thread: it may block, and reaches the loop by `call_soon_threadsafe`."""
        self._config = ClientConfig.from_arguments(
            target,
            job_id,
            group_id,
            os.environ,
            session_ttl_s=session_ttl_s,
            connect_timeout_s=connect_timeout_s,
            unreachable_timeout_s=unreachable_timeout_s,
            wait_slice_s=wait_slice_s,
            use_sessions=use_sessions,
        )
        self.target, self.job_id, self.group_id = self._config.target, self._config.job_id, self._config.group_id
        options = [("grpc.service_config", ORCHESTRATOR_SERVICE_CONFIG), *(channel_options or [])]
        self._engine = Engine(
            self._config, Listeners(on_revoke, on_lost, on_shared), lambda: open_channel(self._config.target, options)
        )

    async def __aenter__(self) -> TimeSliceOrchestratorClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what is held, end the sessions and close the channel. A second call does nothing.

        Without sessions nothing is given back. What could not be given back ends with the session.
        """
        await self._engine.close()

    async def acquire(
        self, job_id: str | None = None, group_id: str | None = None, timeout_sec: float | None = None
    ) -> AcquireResult:
        """Wait until the job holds the group and its memory is on the device.

        As `timeslice.TimeSliceOrchestratorClient.acquire`, with its errors. Cancelled, it takes the job out of the
        queue at once; a grant that crosses that is given back.
        """
        return await self._engine.run(lambda core, now: core.acquire(job_id, group_id, timeout_sec, now))

    async def release(
        self, job_id: str | None = None, group_id: str | None = None, timeout_sec: float | None = None
    ) -> YieldResult:
        """Give the group back; returns as soon as the orchestrator has recorded it.

        As `timeslice.TimeSliceOrchestratorClient.release`, with its errors. Cancelled, the group may be held still:
        call it again. `on_accelerators` sees to that.
        """
        return await self._engine.run(lambda core, now: core.release(job_id, group_id, timeout_sec, now))

    async def get_status(
        self, group_id: str | None = None, timeout_sec: float | None = None
    ) -> OrchestratorGroupStatus:
        """What the group is doing now, as `timeslice.TimeSliceOrchestratorClient.get_status`."""
        return await self._engine.run(lambda core, now: core.get_status(group_id, timeout_sec, now))

    async def group_reply(
        self, group_id: str | None = None, timeout_sec: float | None = None
    ) -> pb2.GetGroupStatusResponse:
        """As `get_status`, but the orchestrator's whole answer: waiters, lease, shares, conditions."""
        return await self._engine.run(lambda core, now: core.group_reply(group_id, timeout_sec, now))

    async def list_groups(self, timeout_sec: float | None = None) -> list[str]:
        """The ids of all groups, as `timeslice.TimeSliceOrchestratorClient.list_groups`."""
        return await self._engine.run(lambda core, now: core.list_groups(timeout_sec, now))

    def on_accelerators(
        self,
        job_id: str | None = None,
        group_id: str | None = None,
        timeout_sec: float | None = None,
        *,
        group_ids: Sequence[str] | None = None,
    ) -> Turns:
        """Hold the group around a block, or, as a decorator, around every call of a coroutine function.

            async with client.on_accelerators(group_id="trainers") as result: ...

            @client.on_accelerators(group_id="trainers")
            async def train_phase(batch): ...

        `timeout_sec` bounds the acquire. The group is given back however the block ends: a cancellation does not
        interrupt that. `group_ids` is reserved.

        Raises:
            NotImplementedError: at once, `group_ids` is given.
            OrchestratorError: as `timeslice.TimeSliceOrchestratorClient.on_accelerators` does.
        """
        check_group_ids(group_ids)
        return Turns(self._engine, job_id, group_id, timeout_sec)


class Turns:
    """What `on_accelerators` returns. May be entered any number of times."""

    def __init__(self, engine: Engine, job_id: str | None, group_id: str | None, timeout_sec: float | None) -> None:
        self._engine, self._job_id, self._group_id, self._timeout_sec = engine, job_id, group_id, timeout_sec

    async def __aenter__(self) -> AcquireResult:
        return await self._engine.run(
            lambda core, now: core.acquire(self._job_id, self._group_id, self._timeout_sec, now)
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.leave(self._job_id, self._group_id, error)

    def __call__(self, function: AsyncFunction) -> AsyncFunction:
        """Hold the group around every call.

        Raises:
            TypeError: it is no coroutine function.
        """
        if not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function!r} is no coroutine function; for plain functions use timeslice.TimeSliceOrchestratorClient"
            )

        @functools.wraps(function)
        async def with_the_group(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return with_the_group  # type: ignore[return-value]
