"""What a client of the orchestrator does, whichever way it sends and waits: each call as a plan of steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from timeslice import _settings
from timeslice._core import wire
from timeslice._core.calls import REPEATED, AcquireCall, Call, GiveUp, Patience, Pause, Send, Status
from timeslice._core.contact import Contact
from timeslice._core.keeping import KeptSession
from timeslice._core.leases import HeldLease, Holding, LeaseBook, Loss
from timeslice._core.sessions import Session, SessionState
from timeslice._core.steps import Attempt, AwaitSession, Plan, Start, Tell, Wake, error, warning
from timeslice.orchestrator.exceptions import OrchestratorError, OrchestratorLeaseLostError, error_from_status
from timeslice.orchestrator.types import AcquireResult, LostLease, OrchestratorGroupStatus, YieldResult
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

CLOSE_S = 2.0
"""For each step of closing: a program that ends should not wait long for an orchestrator that is gone."""


@dataclass(frozen=True)
class ClientConfig:
    """All that a client is told."""

    target: str
    job_id: str | None
    group_id: str | None
    session_ttl_s: float
    use_sessions: bool
    patience: Patience

    @classmethod
    def from_arguments(
        cls,
        target: str | None,
        job_id: str | None,
        group_id: str | None,
        env: Mapping[str, str],
        *,
        session_ttl_s: float,
        connect_timeout_s: float,
        unreachable_timeout_s: float,
        wait_slice_s: float,
        use_sessions: bool,
    ) -> ClientConfig:
        """What is not given comes from the environment.

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
        return cls(
            target=_settings.orchestrator_address(target, env),
            job_id=_settings.job_id(job_id, env),
            group_id=_settings.group_id(group_id, env),
            session_ttl_s=session_ttl_s,
            use_sessions=use_sessions,
            patience=Patience(
                connect_timeout_s=connect_timeout_s,
                unreachable_timeout_s=unreachable_timeout_s,
                slice_s=wait_slice_s,
            ),
        )


class ClientCore:
    """What one client knows and decides. Not safe between threads: its owner has the lock."""

    def __init__(
        self, config: ClientConfig, new_id: Callable[[], str], inherited: Collection[Holding] = frozenset()
    ) -> None:
        """
        Args:
            new_id: makes an id that nobody else has.
            inherited: what the process that this one was forked from held then, and still may.
        """
        self._config, self._new_id, self._inherited = config, new_id, inherited
        self._sessions: dict[str, KeptSession] = {}
        self.book = LeaseBook()
        self.contact = Contact(config.target)
        self.is_closed = False

    # The user's calls. `now` is when the call began, in seconds of a monotonic clock.

    def acquire(
        self, job_id: str | None, group_id: str | None, timeout_s: float | None, now: float
    ) -> Plan[AcquireResult]:
        """Wait until the job holds the group."""
        holding = self._holding(job_id, group_id)
        self._check_open()
        self._raise_loss(holding)
        call = AcquireCall(
            f"acquire of group {holding.group_id!r} for job {holding.job_id!r}",
            request_id=self._new_id(),
            fresh_request_id=self._new_id(),
            patience=self._config.patience,
            now=now,
            timeout_s=timeout_s,
            reached=self.contact.ever,
        )
        kept = (yield from self._session(holding.job_id)) if self._config.use_sessions else None
        token = 0
        self.book.asking(holding)
        try:
            reply = yield from self._complete(
                call,
                "Acquire",
                lambda send: wire.acquire_request(holding, send, kept.id if kept is not None else ""),
                now,
                kept,
            )
            token = wire.granted_token(reply, holding.group_id)
        finally:
            self.book.asked(holding, token)
            if not token and kept is not None:
                kept.renew_now()  # Should the grant have crossed our giving up, the answer shows it.
        return wire.acquire_result(reply)

    def release(
        self, job_id: str | None, group_id: str | None, timeout_s: float | None, now: float
    ) -> Plan[YieldResult]:
        """Give the group back."""
        holding = self._holding(job_id, group_id)
        self._check_open()
        self._raise_loss(holding)
        token = self.book.token(holding)
        if not token and holding in self._inherited:
            raise OrchestratorError(
                f"group {holding.group_id!r} was taken for job {holding.job_id!r} by the process that this one was"
                " forked from, and only that one can give it back; acquire it here to hold it here, too"
            )
        kept = self._sessions.get(holding.job_id)
        request = wire.yield_request(holding, token, kept.id if kept is not None else "")
        call = self._call(
            f"release of group {holding.group_id!r} by job {holding.job_id!r}", timeout_s, now, safe=token > 0
        )
        self.book.releasing(holding, token)
        try:
            reply = yield from self._complete(call, "Yield", lambda _: request, now)
        except OrchestratorError as err:
            loss = self.book.take_loss(holding)
            if loss is None:
                now = (yield Pause(0.0)).now
                is_overdue = kept is not None and kept.session.is_overdue(now)
                loss = self.book.release_failed(holding, token, Status(err.code or "", str(err)), is_overdue)
                if loss is not None:
                    yield Tell(_lost_lease(loss))
            if loss is not None:
                raise OrchestratorLeaseLostError(*holding, loss.lease.token, loss.reason, err.code) from err
            raise
        finally:
            self.book.released(holding, token)
        self.book.given_back(holding, token)
        return wire.yield_result(reply)

    def leave(
        self, job_id: str | None, group_id: str | None, cause: BaseException | None, now: float
    ) -> Plan[None]:
        """Give the group back at a block's end; `cause` is what the block raised. Raises what goes before that."""
        # A person, the event loop or the interpreter ends the program: one try, and no other error on top.
        is_ending = cause is not None and not isinstance(cause, Exception)
        try:
            yield from self.release(job_id, group_id, CLOSE_S if is_ending else None, now)
        except OrchestratorLeaseLostError as lost:
            if not is_ending:
                raise lost from cause
        except OrchestratorError as err:
            if cause is None:
                raise
            if not is_ending:
                yield error(f"group {self._group(group_id)} was not given back: {err}")

    def get_status(self, group_id: str | None, timeout_s: float | None, now: float) -> Plan[OrchestratorGroupStatus]:
        """What the group is doing now."""
        return wire.group_status((yield from self.group_reply(group_id, timeout_s, now)))

    def group_reply(
        self, group_id: str | None, timeout_s: float | None, now: float
    ) -> Plan[pb2.GetGroupStatusResponse]:
        """The orchestrator's whole answer on a group."""
        request = pb2.GetGroupStatusRequest(group_id=self._group(group_id))
        reply: pb2.GetGroupStatusResponse = yield from self._read(
            "get_status", "GetGroupStatus", request, timeout_s, now
        )
        return reply

    def list_groups(self, timeout_s: float | None, now: float) -> Plan[list[str]]:
        """The ids of all groups."""
        reply = yield from self._read("list_groups", "ListGroups", pb2.ListGroupsRequest(), timeout_s, now)
        return list(reply.group_ids)

    def close(self) -> Plan[list[KeptSession] | None]:
        """Forbid further calls and give back what is held; then the shell ends what keeps the sessions that this
        returns. None: somebody else has begun to close already."""
        if self.is_closed:
            return None
        self.is_closed = True
        yield Wake()
        for lease in self.book.all_held() if self._config.use_sessions else []:
            yield warning("client closed while job {} holds group {}: giving it back".format(*lease.holding))
            yield from self.give_back(lease)
        return list(self._sessions.values())

    def give_back(self, lease: HeldLease) -> Plan[None]:
        """One try to yield a lease; what does not come through ends with the session."""
        kept = self._sessions.get(lease.holding.job_id)
        request = wire.yield_request(lease.holding, lease.token, kept.id if kept is not None else "")
        report = yield Attempt("Yield", request, CLOSE_S, outlives_close=True)
        if report.failure is not None:
            yield warning(f"group {lease.holding.group_id} was not given back: {report.failure.details}")
        else:
            self.book.given_back(lease.holding, lease.token)

    # Calls.

    def _read(self, what: str, method: str, request: Any, timeout_s: float | None, now: float) -> Plan[Any]:
        """A question: nobody wants to wait ten minutes for its answer."""
        self._check_open()
        patience = replace(self._config.patience, unreachable_timeout_s=self._config.patience.connect_timeout_s)
        call = self._call(what, timeout_s, now, patience=patience)
        return (yield from self._complete(call, method, lambda _: request, now))

    def _call(
        self, what: str, timeout_s: float | None, now: float, *, safe: bool = True, patience: Patience | None = None
    ) -> Call:
        return Call(
            what,
            patience=patience or self._config.patience,
            now=now,
            timeout_s=timeout_s,
            reached=self.contact.ever,
            safe=safe,
        )

    def _complete(
        self,
        call: Call,
        method: str,
        request_for: Callable[[Send], Any],
        now: float,
        kept: KeptSession | None = None,
    ) -> Plan[Any]:
        """The reply, over as many attempts as it takes; with `kept`, they are sent only while that session is open.

        Raises:
            OrchestratorError: of the last attempt.
        """
        while True:
            failure = None
            if kept is not None:
                report = yield AwaitSession(kept, self._session_wait_s(call, now))
                now, failure = report.now, report.failure
                if kept.session.state is SessionState.UNSUPPORTED and isinstance(call, AcquireCall):
                    call.without_extensions()
            if failure is None:
                step = call.next(now)
                if isinstance(step, GiveUp):
                    raise error_from_status(step.status, self._config.target)
                report = yield Attempt(method, request_for(step), step.timeout_s)
                now, failure = report.now, report.failure
                for said in self.contact.made(now) if _is_answer(failure) else []:
                    yield said
                if failure is None:
                    call.reached()
                    if wire.is_queued(report.reply):
                        continue
                    return report.reply
            self._check_still_open()
            if self.contact.ever:
                call.client_was_answered()
            decision = call.failed(failure, now, report.jitter)
            if isinstance(decision, GiveUp):
                raise error_from_status(decision.status, self._config.target)
            for said in self.contact.failed(failure, now):
                yield said
            now = (yield decision).now
            self._check_still_open()

    def _session_wait_s(self, call: Call, now: float) -> float:
        bound, left = self._config.patience.attempt_timeout_s, call.time_left(now)
        return bound if left is None else max(0.0, min(bound, left))

    # Sessions and leases.

    def _session(self, job_id: str) -> Plan[KeptSession]:
        """The job's session; a refused one is asked for anew, under a new id."""
        kept = self._sessions.get(job_id)
        if kept is None or kept.session.state is SessionState.REFUSED:
            session = Session(self._new_id(), job_id, self._config.session_ttl_s, self._config.patience)
            kept = self._sessions[job_id] = KeptSession(session, self.book, self.contact)
            yield Start(kept)
        return kept

    def _raise_loss(self, holding: Holding) -> None:
        if loss := self.book.take_loss(holding):
            raise OrchestratorLeaseLostError(*holding, loss.lease.token, loss.reason)

    # Arguments.

    def _check_open(self) -> None:
        if self.is_closed:
            raise OrchestratorError("this client was closed; make a new TimeSliceOrchestratorClient")

    def _check_still_open(self) -> None:
        if self.is_closed:
            raise error_from_status(Status("CANCELLED", "the client was closed during the call"), self._config.target)

    def _holding(self, job_id: str | None, group_id: str | None) -> Holding:
        return Holding(_given("job_id", job_id or self._config.job_id, "TIMESLICE_JOB_ID"), self._group(group_id))

    def _group(self, group_id: str | None) -> str:
        return _given("group_id", group_id or self._config.group_id, "TIMESLICE_GROUP_ID")


def check_group_ids(group_ids: object) -> None:
    """Refuse what is reserved.

    Raises:
        NotImplementedError: several groups are asked for.
    """
    if group_ids is not None:
        raise NotImplementedError(
            "on_accelerators(group_ids=[...]) is reserved for taking several groups at once, in a later release; until"
            " then nest one on_accelerators(group_id=...) per group, in the same order everywhere"
        )


def _given(name: str, value: str | None, variable: str) -> str:
    if not value:
        raise ValueError(f"{name} is missing: name it in the call or the constructor, or set {variable}")
    return value


def _is_answer(failure: Status | None) -> bool:
    """True if an attempt that ended so was answered by the orchestrator, well or badly."""
    return failure is None or (failure.code not in REPEATED and failure.code != "DEADLINE_EXCEEDED")


def _lost_lease(loss: Loss) -> LostLease:
    job_id, group_id = loss.lease.holding
    return LostLease(group_id, job_id, loss.lease.token, loss.reason, will_resume=False)
