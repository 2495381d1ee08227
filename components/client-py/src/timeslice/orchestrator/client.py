"""The client of the orchestrator that trainers and samplers use."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from timeslice import _settings
from timeslice._channel import CHANNEL_OPTIONS, open_channel
from timeslice._core import wire
from timeslice._core.calls import AcquireCall, Call, Patience, Status
from timeslice._core.leases import HeldLease, Holding, LeaseBook
from timeslice._core.sessions import Session, SessionState
from timeslice._processes import REGISTERED
from timeslice._sync.calls import Caller
from timeslice._sync.contact import Contact
from timeslice._sync.sessions import SessionKeeper
from timeslice.orchestrator.exceptions import (
    OrchestratorError,
    OrchestratorLeaseLostError,
)
from timeslice.orchestrator.types import AcquireResult, OrchestratorGroupStatus, YieldResult
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

__all__ = ["DEFAULT_CHANNEL_OPTIONS", "DEFAULT_SERVICE_CONFIG", "TimeSliceOrchestratorClient"]

logger = logging.getLogger("timeslice")

DEFAULT_SERVICE_CONFIG = json.dumps(
    {"methodConfig": [{"name": [{"service": "timeslice_orchestrator.v1alpha1.TimeSliceOrchestratorService"}]}]}
)
"""Without a retry policy: grpc would repeat calls of which it cannot know whether that is safe. The client retries."""

DEFAULT_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.service_config", DEFAULT_SERVICE_CONFIG),
    *CHANNEL_OPTIONS,
]

_CLOSE_S = 2.0
"""For each step of close(): a program that ends should not wait long for an orchestrator that is gone."""


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
    job is served. A forked child cannot use its parent's client.
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
    ) -> None:
        """Where nothing is given, the environment decides.

        Args:
            target: the orchestrator, "unix:PATH" or "HOST:PORT"; else $TIMESLICE_ORCH_ADDR, else the socket of
                `timeslice up` on this machine.
            job_id: used by calls that name none; else $TIMESLICE_JOB_ID.
            group_id: used by calls that name none; else $TIMESLICE_GROUP_ID.
            channel_options: grpc channel options, besides and before our own.
            session_ttl_s: silence after which the job's leases end; the orchestrator may shorten or lengthen it.
            connect_timeout_s: how long the first call tries to reach an orchestrator that has not answered yet.
            unreachable_timeout_s: how long a call goes on trying when one that has answered is gone, for example
                because it restarts. A call's own `timeout_sec` ends it sooner.
            wait_slice_s: how long one request waits in the queue before the client asks on; below the idle limit of
                whatever proxy lies between.
            use_sessions: False if leases should outlive this process and this client, as with clients that know no
                sessions.
        Raises:
            ValueError: an address that is none, or a time that is not above 0.
        """
        for name, value in (
            ("session_ttl_s", session_ttl_s),
            ("connect_timeout_s", connect_timeout_s),
            ("unreachable_timeout_s", unreachable_timeout_s),
            ("wait_slice_s", wait_slice_s),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")
        self.target = _settings.orchestrator_address(target, os.environ)
        self.job_id = job_id or os.environ.get("TIMESLICE_JOB_ID")
        self.group_id = group_id or os.environ.get("TIMESLICE_GROUP_ID")
        self._patience = Patience(
            connect_timeout_s=connect_timeout_s,
            unreachable_timeout_s=unreachable_timeout_s,
            slice_s=wait_slice_s,
        )
        self._session_ttl_s, self._use_sessions = session_ttl_s, use_sessions
        self._clock = time.monotonic
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._contact = Contact(self.target)
        self._caller = Caller(
            self.target, self._contact, self._closed, self._patience.attempt_timeout_s, self._clock
        )
        self._changed = threading.Condition()
        self._book = LeaseBook()
        self._sessions: dict[str, SessionKeeper] = {}
        self._channel = open_channel(self.target, [DEFAULT_CHANNEL_OPTIONS[0], *(channel_options or [])])
        self._stub: Any = pb2_grpc.TimeSliceOrchestratorServiceStub(self._channel)  # type: ignore[no-untyped-call]
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
        with self._changed:
            if self._closed.is_set() or os.getpid() != self._pid:
                return
            self._closed.set()
            held = self._book.all_held() if self._use_sessions else []
        for lease in held:
            logger.warning("client closed while job %s holds group %s: giving it back", *lease.holding)
            self._give_back(lease)
        for keeper in list(self._sessions.values()):
            keeper.close(_CLOSE_S)
        self._channel.close()

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
        holding = Holding(self._job(job_id), self._group(group_id))
        self._check_usable()
        self._raise_loss(holding)
        call = AcquireCall(
            f"acquire of group {holding.group_id!r} for job {holding.job_id!r}",
            request_id=uuid.uuid4().hex,
            fresh_request_id=uuid.uuid4().hex,
            patience=self._patience,
            now=self._clock(),
            timeout_s=timeout_sec,
            reached=self._contact.ever(),
        )
        keeper = self._session(holding.job_id) if self._use_sessions else None
        token = 0
        with self._changed:
            self._book.asking(holding)
        try:
            reply = self._caller.complete(
                call,
                self._stub.Acquire,
                lambda send: wire.acquire_request(holding, send, self._session_id(keeper)),
                keeper,
            )
            token = wire.granted_token(reply, holding.group_id)
        finally:
            with self._changed:
                self._book.asked(holding, token)
            if not token and keeper is not None:
                keeper.renew_now()  # Should the grant have crossed our giving up, the answer shows it.
        return wire.acquire_result(reply)

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
        holding = Holding(self._job(job_id), self._group(group_id))
        self._check_usable()
        self._raise_loss(holding)
        with self._changed:
            token = self._book.token(holding)
            keeper = self._sessions.get(holding.job_id)
        request = wire.yield_request(holding, token, self._session_id(keeper))
        what = f"release of group {holding.group_id!r} by job {holding.job_id!r}"
        try:
            reply = self._unary(self._stub.Yield, request, what, timeout_sec, safe=token > 0)
        except OrchestratorError as err:
            with self._changed:
                is_overdue = keeper is not None and keeper.session.is_overdue(self._clock())
                loss = self._book.release_failed(holding, token, Status(err.code or "", str(err)), is_overdue)
            if loss is not None:
                raise OrchestratorLeaseLostError(*holding, loss.lease.token, loss.reason, err.code) from err
            raise
        with self._changed:
            self._book.given_back(holding, token)
        return wire.yield_result(reply)

    def get_status(self, group_id: str | None = None, timeout_sec: float | None = None) -> OrchestratorGroupStatus:
        """What the group is doing now.

        Raises:
            ValueError: neither call nor constructor name the group.
            OrchestratorConnectionError: no orchestrator answers.
            OrchestratorError: refused, for example NOT_FOUND for an unknown group.
        """
        return wire.group_status(self.group_reply(group_id, timeout_sec))

    def group_reply(
        self, group_id: str | None = None, timeout_sec: float | None = None
    ) -> pb2.GetGroupStatusResponse:
        """As `get_status`, but the orchestrator's whole answer: waiters, lease, shares, conditions."""
        request = pb2.GetGroupStatusRequest(group_id=self._group(group_id))
        reply: pb2.GetGroupStatusResponse = self._read(self._stub.GetGroupStatus, request, "get_status", timeout_sec)
        return reply

    def list_groups(self, timeout_sec: float | None = None) -> list[str]:
        """The ids of all groups.

        Raises:
            OrchestratorConnectionError: no orchestrator answers.
            OrchestratorError: refused.
        """
        reply = self._read(self._stub.ListGroups, pb2.ListGroupsRequest(), "list_groups", timeout_sec)
        return list(reply.group_ids)

    @contextlib.contextmanager
    def on_accelerators(
        self, job_id: str | None = None, group_id: str | None = None, timeout_sec: float | None = None
    ) -> Iterator[AcquireResult]:
        """Hold the group around a block, or, as a decorator, around every call of a function.

            with client.on_accelerators(group_id="trainers") as result: ...

            @client.on_accelerators(group_id="trainers")
            def train_phase(batch): ...

        `timeout_sec` bounds the acquire. The group is given back however the block ends.

        Raises:
            OrchestratorLeaseLostError: at the block's end, the lease was lost in the middle; what the block raised, if
                anything, is its cause.
            OrchestratorError: as `acquire` and `release` do. What the block itself raised goes first.
        """
        result = self.acquire(job_id=job_id, group_id=group_id, timeout_sec=timeout_sec)
        try:
            yield result
        except Exception as err:
            try:
                self.release(job_id=job_id, group_id=group_id)
            except OrchestratorLeaseLostError as lost:
                raise lost from err
            except OrchestratorError:
                logger.exception("group %s was not given back", self._group(group_id))
            raise
        except BaseException:
            # A person or the interpreter ends the program: one try, and no other error on top.
            with contextlib.suppress(OrchestratorError):
                self.release(job_id=job_id, group_id=group_id, timeout_sec=_CLOSE_S)
            raise
        self.release(job_id=job_id, group_id=group_id)

    # Calls.

    def _read(self, rpc: Any, request: Any, what: str, timeout_sec: float | None) -> Any:
        """A question: nobody wants to wait ten minutes for its answer."""
        patience = replace(self._patience, unreachable_timeout_s=self._patience.connect_timeout_s)
        return self._unary(rpc, request, what, timeout_sec, patience=patience)

    def _unary(
        self,
        rpc: Any,
        request: Any,
        what: str,
        timeout_sec: float | None,
        *,
        safe: bool = True,
        patience: Patience | None = None,
    ) -> Any:
        self._check_usable()
        call = Call(
            what,
            patience=patience or self._patience,
            now=self._clock(),
            timeout_s=timeout_sec,
            reached=self._contact.ever(),
            safe=safe,
        )
        return self._caller.complete(call, rpc, lambda _: request)

    # Sessions and leases.

    def _session(self, job_id: str) -> SessionKeeper:
        """The job's session; a refused one is asked for anew, under a new id."""
        with self._changed:
            keeper = self._sessions.get(job_id)
            if keeper is not None and keeper.session.state is not SessionState.REFUSED:
                return keeper
            keeper = self._sessions[job_id] = SessionKeeper(
                Session(uuid.uuid4().hex, job_id, self._session_ttl_s, self._patience),
                self._book,
                self._changed,
                self._stub.Session,
                self._give_back,
                self._contact,
                REGISTERED,
            )
        keeper.start()
        return keeper

    def _session_id(self, keeper: SessionKeeper | None) -> str:
        if keeper is None or keeper.session.state is SessionState.UNSUPPORTED:
            return ""
        return keeper.session.id

    def _give_back(self, lease: HeldLease) -> None:
        """One try to yield a lease; what does not come through ends with the session."""
        keeper = self._sessions.get(lease.holding.job_id)
        request = wire.yield_request(lease.holding, lease.token, self._session_id(keeper))
        _, failure = self._caller.attempt(self._stub.Yield, request, _CLOSE_S)
        if failure is not None:
            logger.warning("group %s was not given back: %s", lease.holding.group_id, failure.details)
            return
        with self._changed:
            self._book.given_back(lease.holding, lease.token)

    def _raise_loss(self, holding: Holding) -> None:
        with self._changed:
            loss = self._book.take_loss(holding)
        if loss is not None:
            raise OrchestratorLeaseLostError(*holding, loss.lease.token, loss.reason)

    # Arguments.

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise OrchestratorError(
                f"this client was made in process {self._pid} and cannot be used in its child {os.getpid()};"
                " make a new TimeSliceOrchestratorClient here"
            )
        if self._closed.is_set():
            raise OrchestratorError("this client was closed; make a new TimeSliceOrchestratorClient")

    def _job(self, job_id: str | None) -> str:
        return _given("job_id", job_id or self.job_id, "TIMESLICE_JOB_ID")

    def _group(self, group_id: str | None) -> str:
        return _given("group_id", group_id or self.group_id, "TIMESLICE_GROUP_ID")


def _given(name: str, value: str | None, variable: str) -> str:
    if not value:
        raise ValueError(f"{name} is missing: name it in the call or the constructor, or set {variable}")
    return value


