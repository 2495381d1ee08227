"""A small orchestrator with state, in the test's own process: FIFO groups, tokens, request ids, sessions, restarts.

It keeps the contract of orchestrator.proto as far as a client can see it, and can be told to fail.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc


@dataclass
class FakeGroup:
    lease: pb2.Lease | None = None
    last_token: int = 0
    waiting: list[str] = field(default_factory=list)
    """Request ids in order."""
    given_back: dict[int, str] = field(default_factory=dict)


@dataclass
class FakeSession:
    job_id: str
    notices: deque[pb2.SessionNotice] = field(default_factory=deque)
    streams: int = 0
    requests: list[tuple[float, pb2.SessionRequest]] = field(default_factory=list)


class FakeOrchestrator(pb2_grpc.TimeSliceOrchestratorServiceServicer):
    """State outlives `stop()` and `start()`, as a store would."""

    def __init__(self, address: str, *groups: str, knows_sessions: bool = True, ttl_ms: int = 30_000) -> None:
        self.address, self.knows_sessions, self.ttl_ms = address, knows_sessions, ttl_ms
        self.groups = {group: FakeGroup() for group in groups}
        self.sessions: dict[str, FakeSession] = {}
        self.calls: list[tuple[str, Any]] = []
        self.answers_renewals = True
        self.discarded_tags: list[str] = []
        self._grants: dict[str, pb2.Lease] = {}
        self._failures: dict[str, deque[tuple[str, str, bool]]] = {}
        self._held_answers: dict[str, threading.Event] = {}
        self.changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._stopping = False

    # What a test does with it.

    def start(self) -> None:
        self._stopping = False
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=32),
            options=[("grpc.http2.min_recv_ping_interval_without_data_ms", 5000), ("grpc.so_reuseport", 0)],
        )
        pb2_grpc.add_TimeSliceOrchestratorServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address)
        if self.address.endswith(":0"):
            self.address = f"{self.address[:-2]}:{port}"
        self._server.start()

    def stop(self) -> None:
        """As a kill would: every connection breaks, every call with it."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        assert self._server is not None
        self._server.stop(grace=None).wait()
        self._server = None

    def fail_next(self, method: str, code: str, details: str = "injected", *, after: bool = False) -> None:
        """The next call fails; `after`: it is carried out first, and only the answer is lost."""
        with self.changed:
            self._failures.setdefault(method, deque()).append((code, details, after))

    def hold_answers(self, method: str) -> threading.Event:
        """Calls are carried out, and their answers wait until the event is set."""
        with self.changed:
            return self._held_answers.setdefault(method, threading.Event())

    def seen(self, method: str) -> list[Any]:
        with self.changed:
            return [request for name, request in self.calls if name == method]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "this never came about"

    def holder(self, group: str) -> str | None:
        lease = self.groups[group].lease
        return lease.job_id if lease else None

    def session_of(self, job_id: str) -> FakeSession:
        return next(s for s in self.sessions.values() if s.job_id == job_id)

    def end_lease(self, group: str, reason: str, *, tell: bool = True) -> None:
        """Ends the lease; `tell` sends the notice."""
        with self.changed:
            state = self.groups[group]
            assert state.lease is not None
            lease, state.lease = state.lease, None
            if tell:
                self.sessions[lease.owner_session_id].notices.append(
                    pb2.SessionNotice(lost=pb2.LeaseLost(lease=lease, reason=reason))
                )
            self._grant_next(group)

    def notify(self, job_id: str, notice: pb2.SessionNotice) -> None:
        with self.changed:
            self.session_of(job_id).notices.append(notice)
            self.changed.notify_all()

    def add_group(self, group: str) -> None:
        with self.changed:
            self.groups[group] = FakeGroup()

    def hold(self, group: str, job_id: str = "stranger") -> pb2.Lease:
        """A job of some other client holds the group."""
        with self.changed:
            assert self.groups[group].lease is None
            return self._grant(group, job_id, "", "")

    def free(self, group: str) -> None:
        with self.changed:
            self.groups[group].lease = None
            self._grant_next(group)

    # The service.

    def Acquire(self, request: pb2.AcquireRequest, context: grpc.ServicerContext) -> pb2.AcquireResponse:
        after = self._enter("Acquire", request, context)
        group = self.groups.get(request.group_id)
        if group is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown group {request.group_id!r}")
        started = time.monotonic()
        request_id = request.request_id or f"anonymous-{id(request)}"
        ended = threading.Event()

        def gone() -> None:
            with self.changed:
                ended.set()
                self.changed.notify_all()

        if not context.add_callback(gone):
            gone()
        with self.changed:
            if request.session_id and request.session_id not in self.sessions:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "unknown session")
            known = self._grants.get(request_id)
            if known is not None and known.fencing_token in group.given_back:
                context.abort(grpc.StatusCode.ABORTED, "this request's lease was given back")
            if known is None:
                if group.lease is not None and group.lease.job_id == request.job_id:
                    self._grants[request_id] = group.lease
                elif request_id not in group.waiting:
                    group.waiting.append(request_id)
                    self._askers[request_id] = (request.job_id, request.session_id)
                    self.changed.notify_all()
                self._grant_next(request.group_id)
            wait_s = request.wait_ms / 1000 if request.wait_ms else None
            self.changed.wait_for(
                lambda: request_id in self._grants or ended.is_set() or self._stopping, wait_s
            )
            if self._stopping:  # The waiter is in the store; the caller sees a broken connection.
                context.abort(grpc.StatusCode.UNAVAILABLE, "stopped")
            lease = self._grants.get(request_id)
            if lease is None and ended.is_set():
                group.waiting.remove(request_id)
                self.changed.notify_all()
                context.abort(grpc.StatusCode.CANCELLED, "gone")
            if lease is None:
                return pb2.AcquireResponse(queued=True)
        after()
        return pb2.AcquireResponse(
            success=True,
            waited_ms=int((time.monotonic() - started) * 1000),
            context_restored=False,
            leases=[lease],
            discarded_tags=self.discarded_tags,
        )

    def Yield(self, request: pb2.YieldRequest, context: grpc.ServicerContext) -> pb2.YieldResponse:
        after = self._enter("Yield", request, context)
        group = self.groups.get(request.group_id)
        if group is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown group {request.group_id!r}")
        with self.changed:
            if request.fencing_token in group.given_back:
                pass
            elif group.lease is None or group.lease.job_id != request.job_id:
                if request.fencing_token:
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"lease {request.fencing_token} is over")
                context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{request.job_id!r} is not the holder")
            elif request.fencing_token not in (0, group.lease.fencing_token):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"lease {request.fencing_token} is over")
            else:
                group.given_back[group.lease.fencing_token] = request.job_id
                group.lease = None
                self._grant_next(request.group_id)
            pending = len(group.waiting)
            self.changed.notify_all()
        after()
        return pb2.YieldResponse(success=True, pending_waiters=pending, snapshot_deferred=pending == 0)

    def ListGroups(self, request: pb2.ListGroupsRequest, context: grpc.ServicerContext) -> pb2.ListGroupsResponse:
        self._enter("ListGroups", request, context)()
        return pb2.ListGroupsResponse(group_ids=list(self.groups))

    def GetGroupStatus(
        self, request: pb2.GetGroupStatusRequest, context: grpc.ServicerContext
    ) -> pb2.GetGroupStatusResponse:
        self._enter("GetGroupStatus", request, context)()
        group = self.groups.get(request.group_id)
        if group is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown group {request.group_id!r}")
        with self.changed:
            status = pb2.GroupStatus(
                group_id=request.group_id,
                group_state=pb2.GroupStatus.STATE_LOCKED if group.lease else pb2.GroupStatus.STATE_IDLE,
                locking_job=group.lease.job_id if group.lease else "",
                waiter_queue_depth=len(group.waiting),
                accelerators=["node/GPU-1"],
            )
            status.state_timestamp.FromSeconds(1_700_000_000)
        return pb2.GetGroupStatusResponse(
            group=status,
            agent_job_states=[
                pb2.SnapshotAgentJobState(
                    agent="node", job_id="a", job_state=pb2.SnapshotAgentJobState.STATE_SAVED
                )
            ],
        )

    def Session(
        self, requests: Iterator[pb2.SessionRequest], context: grpc.ServicerContext
    ) -> Iterator[pb2.SessionNotice]:
        if not self.knows_sessions:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        first = next(requests)
        self._enter("Session", first, context)
        with self.changed:
            session = self.sessions.setdefault(first.session_id, FakeSession(first.job_id))
            session.streams += 1
        over = threading.Event()

        def read() -> None:
            try:
                self._renewed(first)
                for request in requests:
                    self._renewed(request)
            except Exception:
                pass  # The stream broke.
            finally:
                with self.changed:
                    over.set()
                    session.streams -= 1
                    self.changed.notify_all()

        threading.Thread(target=read, daemon=True).start()
        while True:
            with self.changed:
                self.changed.wait_for(lambda: session.notices or over.is_set() or self._stopping)
                if self._stopping:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "stopped")
                if not session.notices:
                    return
                notice = session.notices.popleft()
            yield notice

    # Inside.

    @property
    def _askers(self) -> dict[str, tuple[str, str]]:
        return self.__dict__.setdefault("_asker_by_request", {})

    def _enter(self, method: str, request: Any, context: grpc.ServicerContext) -> Callable[[], None]:
        """Notes the call and fails it if told to; what is returned fails it at its end if told so."""
        with self.changed:
            self.calls.append((method, request))
            self.changed.notify_all()
            pending = self._failures.get(method)
            failure = pending.popleft() if pending else None
            held = self._held_answers.get(method)
        if held is not None:
            return lambda: held.wait(30) and None
        if failure is None:
            return lambda: None
        code, details, after = failure

        def fail() -> None:
            context.abort(grpc.StatusCode[code], details)

        if after:
            return fail
        fail()
        raise AssertionError

    def _renewed(self, request: pb2.SessionRequest) -> None:
        with self.changed:
            session = self.sessions[request.session_id]
            session.requests.append((time.monotonic(), request))
            if self.answers_renewals:
                leases = [
                    g.lease for g in self.groups.values() if g.lease and g.lease.owner_session_id == request.session_id
                ]
                session.notices.append(
                    pb2.SessionNotice(opened=pb2.SessionOpened(ttl_ms=self.ttl_ms, leases=leases))
                )
            self.changed.notify_all()

    def _grant_next(self, group_id: str) -> None:
        group = self.groups[group_id]
        if group.lease is None and group.waiting:
            request_id = group.waiting.pop(0)
            job_id, session_id = self._askers[request_id]
            self._grants[request_id] = self._grant(group_id, job_id, session_id, request_id)
        self.changed.notify_all()

    def _grant(self, group_id: str, job_id: str, session_id: str, request_id: str) -> pb2.Lease:
        group = self.groups[group_id]
        group.last_token += 1
        group.lease = pb2.Lease(
            group_id=group_id,
            job_id=job_id,
            fencing_token=group.last_token,
            ttl_ms=self.ttl_ms,
            owner_session_id=session_id,
        )
        return group.lease
