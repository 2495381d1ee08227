"""The client of the orchestrator that trainers and samplers use."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from timeslice._channel import CHANNEL_OPTIONS, ORCHESTRATOR_SERVICE_CONFIG, open_channel
from timeslice._core.calls import Patience
from timeslice._core.client import ClientConfig, check_group_ids
from timeslice._core.telling import Listeners
from timeslice._sync.engine import Engine
from timeslice.orchestrator.types import (
    AcquireResult,
    LostLease,
    OrchestratorGroupStatus,
    RevokeNotice,
    SharedLease,
    YieldResult,
)
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

__all__ = ["DEFAULT_CHANNEL_OPTIONS", "DEFAULT_SERVICE_CONFIG", "TimeSliceOrchestratorClient"]

DEFAULT_SERVICE_CONFIG = ORCHESTRATOR_SERVICE_CONFIG

DEFAULT_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.service_config", DEFAULT_SERVICE_CONFIG),
    *CHANNEL_OPTIONS,
]


_open_clients: weakref.WeakSet[TimeSliceOrchestratorClient] = weakref.WeakSet()


@atexit.register
def _close_open_clients() -> None:
    """A program that ends without `close` gives back what it holds: the next job need not wait out its session."""
    for client in list(_open_clients):
        with contextlib.suppress(Exception):  # The interpreter is going down, and the session ends with it anyway.
            client.close()


class TimeSliceOrchestratorClient:
    """Takes groups of accelerators for a job, and gives them back.

    Made cheaply: it connects at the first call. It may be used from several threads. While it holds or waits for a
    group, a background thread keeps the job's session alive; when the process ends, so does the session, and the next
    job is served. In a forked child it starts afresh: the child's calls are its own, and the parent's leases stay the
    parent's.
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
        """Where nothing is given, the environment decides.

        Args:
            target: the orchestrator, "unix:PATH" or "HOST:PORT"; else $TIMESLICE_ORCH_ADDR, else the socket of
                `timeslice up` on this machine, else, in a pod, the cluster's (timesliceorchestrator.timeslice-system).
            job_id: used by calls that name none; else $TIMESLICE_JOB_ID, else the pod's label timeslice.io/job-id,
                where the pod mounts its labels at /etc/podinfo by the downward API.
            group_id: used by calls that name none; else $TIMESLICE_GROUP_ID, else the pod's label timeslice.io/group.
            channel_options: grpc channel options, besides and before our own.
            session_ttl_s: silence after which the job's leases end; the orchestrator may shorten or lengthen it.
            connect_timeout_s: how long the first call tries to reach an orchestrator that has not answered yet.
            unreachable_timeout_s: how long a call goes on trying when one that has answered is gone, for example
                because it restarts. A call's own `timeout_sec` ends it sooner.
            wait_slice_s: how long one request waits in the queue before the client asks on; below the idle limit of
                whatever proxy lies between.
            use_sessions: False if leases should outlive this process and this client, as with clients that know no
                sessions. None of the functions below is called then.
            on_revoke: called when the job is asked to give a group back.
            on_lost: called when a lease ended without the job giving it back, or the job was frozen.
            on_shared: called when another process of the same job has come to a lease, or left it.
                Each of the three is called once per event, in a thread of its own, one event after the other. It may
                use this client. What it raises is logged.
        Raises:
            ValueError: an address that is none, or a time that is not above 0.
        """
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
        options = [DEFAULT_CHANNEL_OPTIONS[0], *(channel_options or [])]
        self._engine = Engine(
            self._config, Listeners(on_revoke, on_lost, on_shared), lambda: open_channel(self._config.target, options)
        )
        _open_clients.add(self)

    def __enter__(self) -> TimeSliceOrchestratorClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is held, end the sessions and close the channel. A second call does nothing.

        Done by itself when the program ends. Without sessions nothing is given back. Never raises: what could not be
        given back ends with the session.
        """
        self._engine.close()

    def acquire(
        self, job_id: str | None = None, group_id: str | None = None, timeout_sec: float | None = None
    ) -> AcquireResult:
        """Wait until the job holds the group and its memory is on the device.

        Asking again for what the job holds already returns at once. An orchestrator that restarts is waited for; the
        place in the queue is kept.

        Args:
            job_id: else the constructor's.
            group_id: else the constructor's.
            timeout_sec: for the whole call; None waits as long as it takes.
        Raises:
            ValueError: neither call nor constructor name the job or the group.
            OrchestratorTimeoutError: not granted in time; the job is out of the queue.
            OrchestratorConnectionError: no orchestrator answers.
            OrchestratorLeaseLostError: an earlier lease on this group was lost; said once, and nothing was asked.
            OrchestratorError: refused; the text says why.
        """
        return self._engine.run(lambda core, now: core.acquire(job_id, group_id, timeout_sec, now))

    def release(
        self, job_id: str | None = None, group_id: str | None = None, timeout_sec: float | None = None
    ) -> YieldResult:
        """Give the group back; returns as soon as the orchestrator has recorded it.

        Args:
            job_id: else the constructor's.
            group_id: else the constructor's.
            timeout_sec: for the whole call; None: an orchestrator that restarts is waited for.
        Raises:
            ValueError: neither call nor constructor name the job or the group.
            OrchestratorLeaseLostError: the lease had ended before; said once.
            OrchestratorConnectionError: no orchestrator answers; the group may still be held.
            OrchestratorError: refused, for example because the job does not hold the group.
        """
        return self._engine.run(lambda core, now: core.release(job_id, group_id, timeout_sec, now))

    def get_status(self, group_id: str | None = None, timeout_sec: float | None = None) -> OrchestratorGroupStatus:
        """What the group is doing now.

        Raises:
            ValueError: neither call nor constructor name the group.
            OrchestratorConnectionError: no orchestrator answers.
            OrchestratorError: refused, for example NOT_FOUND for an unknown group.
        """
        return self._engine.run(lambda core, now: core.get_status(group_id, timeout_sec, now))

    def group_reply(
        self, group_id: str | None = None, timeout_sec: float | None = None
    ) -> pb2.GetGroupStatusResponse:
        """As `get_status`, but the orchestrator's whole answer: waiters, lease, shares, conditions."""
        return self._engine.run(lambda core, now: core.group_reply(group_id, timeout_sec, now))

    def list_groups(self, timeout_sec: float | None = None) -> list[str]:
        """The ids of all groups.

        Raises:
            OrchestratorConnectionError: no orchestrator answers.
            OrchestratorError: refused.
        """
        return self._engine.run(lambda core, now: core.list_groups(timeout_sec, now))

    def on_accelerators(
        self,
        job_id: str | None = None,
        group_id: str | None = None,
        timeout_sec: float | None = None,
        *,
        group_ids: Sequence[str] | None = None,
    ) -> contextlib._GeneratorContextManager[AcquireResult]:
        """Hold the group around a block, or, as a decorator, around every call of a function.

            with client.on_accelerators(group_id="trainers") as result: ...

            @client.on_accelerators(group_id="trainers")
            def train_phase(batch): ...

        `timeout_sec` bounds the acquire. The group is given back however the block ends; not by a child that was forked
        inside. `group_ids` is reserved.

        Raises:
            NotImplementedError: at once, `group_ids` is given.
            OrchestratorLeaseLostError: at the block's end, the lease was lost in the middle; what the block raised, if
                anything, is its cause.
            OrchestratorError: as `acquire` and `release` do. What the block itself raised goes first.
        """
        check_group_ids(group_ids)
        return self._held(job_id, group_id, timeout_sec)

    @contextlib.contextmanager
    def _held(self, job_id: str | None, group_id: str | None, timeout_sec: float | None) -> Iterator[AcquireResult]:
        result, holder = self.acquire(job_id, group_id, timeout_sec), os.getpid()
        try:
            yield result
        except BaseException as err:
            self._leave(job_id, group_id, err, holder)
            raise
        self._leave(job_id, group_id, None, holder)

    def _leave(self, job_id: str | None, group_id: str | None, cause: BaseException | None, holder: int) -> None:
        if os.getpid() == holder:
            self._engine.run(lambda core, now: core.leave(job_id, group_id, cause, now))
