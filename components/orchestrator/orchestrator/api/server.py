"""The orchestrator's gRPC service: requests become events of the core, its answers become replies."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, assert_never

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator.api import wire
from orchestrator.api.calls import Calls
from orchestrator.api.event_log import EventLog
from orchestrator.api.outbox import FellBehind, Outbox
from orchestrator.api.statuses import STATUS, STOPPING, unknown_group
from orchestrator.api.validation import problem_of
from orchestrator.core.effects import (
    AnswerSession,
    NotifyLeaseLost,
    NotifyLeaseShared,
    Publish,
    Refuse,
    ReplyAcquired,
    ReplyEvicted,
    ReplyQueued,
    ReplyYielded,
)
from orchestrator.core.events import CallCancelled, Event, SessionClosed, SessionStreamLost
from orchestrator.core.types import CallId, Epoch, GroupId, GroupView, Lease, Refusal, RefusalCode, Token
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

ClientEffect = (
    ReplyAcquired
    | ReplyQueued
    | ReplyYielded
    | ReplyEvicted
    | Refuse
    | AnswerSession
    | NotifyLeaseLost
    | NotifyLeaseShared
    | Publish
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the service needs of the core."""

    post: Callable[[Event], None]
    group_ids: Callable[[], tuple[GroupId, ...]]
    view: Callable[[GroupId], GroupView | None]


class OrchestratorService(pb_grpc.TimeSliceOrchestratorServiceServicer):
    """All calls of the contract. `perform` brings the core's answers."""

    def __init__(self, core: Core, clock: wire.Clock, epoch: Epoch, *, log_size: int, watch_limit: int) -> None:
        self._core = core
        self._clock = clock
        self._watch_limit = watch_limit
        self._calls = Calls()
        self._granted_at: dict[GroupId, tuple[Token, Timestamp]] = {}
        self._is_stopping = False
        self._is_stopped = False
        self._log = EventLog(epoch, log_size, self._status, clock)

    def perform(self, effect: ClientEffect) -> None:
        """Answer a client, or tell the watchers."""
        match effect:
            case ReplyAcquired():
                reply = wire.acquired(effect, self._grant_time(effect.lease), self._clock)
                self._calls.answer(effect.call, reply)
            case ReplyQueued():
                self._calls.answer(effect.call, pb.AcquireResponse(queued=True))
            case ReplyYielded():
                self._calls.answer(effect.call, wire.yield_answer(effect))
            case ReplyEvicted():
                self._calls.answer(effect.call, wire.evicted(effect))
            case Refuse():
                self._calls.answer(effect.call, effect.refusal)
            case AnswerSession():
                self._calls.answer(effect.stream, wire.session_opened(effect, self._grant_time, self._clock))
            case NotifyLeaseLost():
                notice = wire.lease_lost(effect, self._grant_time(effect.lease), self._clock)
                self._calls.answer(effect.stream, notice)
            case NotifyLeaseShared():
                shared = wire.lease_shared(effect, self._grant_time(effect.lease), self._clock)
                self._calls.answer(effect.stream, shared)
            case Publish():
                self._log.append(effect)
            case _:
                assert_never(effect)

    def refuse_new(self) -> None:
        """From now on requests that would change something are refused; those in progress go on."""
        self._is_stopping = True

    def end_all(self) -> None:
        """End what is in progress, without telling the core: to it, these clients wait on."""
        self._is_stopping = self._is_stopped = True
        self._calls.end_all(STOPPING)

    # The contract.

    async def Acquire(self, request: pb.AcquireRequest, context: Any) -> pb.AcquireResponse:
        if not self._admits(request, context):
            return pb.AcquireResponse()
        call, answer = self._calls.open()
        context.add_done_callback(partial(self._acquire_ended, call))
        self._core.post(wire.acquire(request, call))
        # Thousands wait here: each frame and closure on the way is kept as many times.
        message = await answer
        if isinstance(message, Refusal):
            await self._abort(context, message)
        return message  # type: ignore[no-any-return]

    async def Yield(self, request: pb.YieldRequest, context: Any) -> pb.YieldResponse:
        if not self._admits(request, context):
            return pb.YieldResponse()
        call, answer = self._calls.open()
        context.add_done_callback(lambda _: self._calls.close(call))
        self._core.post(wire.yielded(request, call))
        return await self._answered(answer, context)  # type: ignore[no-any-return]

    async def Evict(self, request: pb.EvictRequest, context: Any) -> pb.EvictResponse:
        if not self._admits(request, context):
            return pb.EvictResponse()
        call, answer = self._calls.open()
        event = wire.evict(request, call)
        if event is None:
            self._calls.close(call)
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(f"action {request.action} is not one of EvictRequest.Action")
            return pb.EvictResponse()
        context.add_done_callback(lambda _: self._calls.close(call))
        self._core.post(event)
        return await self._answered(answer, context)  # type: ignore[no-any-return]

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        return pb.ListGroupsResponse(group_ids=self._core.group_ids())

    async def GetGroupStatus(self, request: pb.GetGroupStatusRequest, context: Any) -> pb.GetGroupStatusResponse:
        if not self._is_valid(request, context):
            return pb.GetGroupStatusResponse()
        view = self._core.view(GroupId(request.group_id))
        if view is None:
            await self._abort(context, unknown_group(request.group_id))
        return pb.GetGroupStatusResponse(
            group=wire.group_status(view, self._clock),
            agent_job_states=[wire.agent_job_state(seen) for seen in view.contexts])

    async def WatchGroups(self, request: pb.WatchGroupsRequest, context: Any) -> None:
        """Events after `after_sequence` from memory (of the group, its id only), the present state, every change."""
        if not self._is_valid(request, context):
            return
        known = self._core.group_ids()
        for group in request.group_ids:
            if group not in known:
                await self._abort(context, unknown_group(group))
        watcher = self._log.follow(request.group_ids, self._watch_limit)
        try:
            first = self._log.since(request.after_sequence, request.group_ids) if request.after_sequence else []
            first += [
                pb.GroupEvent(time=self._clock.timestamp(), group=self._status(GroupId(group)), kind="state",
                              sequence=self._log.last_sequence)
                for group in request.group_ids or known]
            for event in first:
                await context.write(event)
            while True:
                await context.write(await watcher.outbox.next())
        except FellBehind:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "this client reads too slowly and missed events; watch again with the last sequence it has seen")
        finally:
            self._log.leave(watcher)

    async def Session(self, _: Any, context: Any) -> None:
        stream, outbox = self._calls.open_stream()
        reading = asyncio.create_task(self._read_session(stream, outbox, context), name=f"session stream {stream}")
        is_closed = False
        try:
            while (message := await outbox.next()) is not None:
                if isinstance(message, Refusal):
                    await self._abort(context, message)
                await context.write(message)
            # Reading ends in the same way when the client closes its stream and when its connection breaks; but only
            # who is there can be written to.
            await context.write(pb.SessionNotice())
            is_closed = True
        except FellBehind:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "this client does not read its session's notices; open it again")
        finally:
            reading.cancel()
            self._calls.close(stream)
            if not self._is_stopped:
                self._core.post(SessionClosed(stream) if is_closed else SessionStreamLost(stream))

    # Helpers.

    async def _read_session(self, stream: CallId, outbox: Outbox[Any], context: Any) -> None:
        """Post what the client sends; when it closes the stream by itself, None ends the outbox."""
        while (request := await context.read()) is not grpc.aio.EOF:
            problem = problem_of(request)
            if problem is not None:
                outbox.put(Refusal(RefusalCode.INVALID_ARGUMENT, problem.text))
                return
            self._core.post(wire.session(request, stream))
        outbox.put(None)

    async def _answered(self, answer: asyncio.Future[Any], context: Any) -> Any:
        message = await answer
        if isinstance(message, Refusal):
            await self._abort(context, message)
        return message

    def _acquire_ended(self, call: CallId, context: Any) -> None:
        """The handler is over. Unless a status was sent, the client never got an answer."""
        self._calls.close(call)
        if not context.done() and not self._is_stopped:
            self._core.post(CallCancelled(call))

    def _admits(self, request: Any, context: Any) -> bool:
        """Whether the call may go on; if not, its status is set."""
        if not self._is_valid(request, context):
            return False
        if self._is_stopping:
            context.set_code(STATUS[STOPPING.code])
            context.set_details(STOPPING.text)
        return not self._is_stopping

    def _is_valid(self, request: Any, context: Any) -> bool:
        """Whether the request has the right form; if not, the call's status is set.

        Set, not raised: an exception that travels through grpc keeps huge requests in memory three times as long.
        """
        problem = problem_of(request)
        if problem is not None:
            context.set_code(problem.code)
            context.set_details(problem.text)
        return problem is None

    async def _abort(self, context: Any, refusal: Refusal) -> NoReturn:
        await context.abort(STATUS[refusal.code], refusal.text)
        raise AssertionError("abort always raises")

    def _status(self, group: GroupId) -> pb.GroupStatus | None:
        view = self._core.view(group)
        return None if view is None else wire.group_status(view, self._clock)

    def _grant_time(self, lease: Lease) -> Timestamp:
        """When this lease was first told to somebody; of a lease from before a restart, the first time since."""
        token, at = self._granted_at.get(lease.group, (None, None))
        if token != lease.token or at is None:
            at = self._clock.timestamp()
            self._granted_at[lease.group] = (lease.token, at)
        return at
