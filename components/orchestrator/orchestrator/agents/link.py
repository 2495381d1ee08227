"""The connection to one node's agent: what it sees, pushed to the core; what the core wants, called.

One stream (`Watch`) tells everything first and then every change; when it breaks it is opened again and tells
everything anew, so nothing that happened meanwhile is missed. Every call has a deadline. An agent without Watch is
asked instead (`polling.py`).
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from orchestrator.agents import wire
from orchestrator.agents.calls import AgentError, answer
from orchestrator.agents.dialing import Dialer
from orchestrator.agents.order_stream import OrderStream
from orchestrator.agents.polling import PolledAgent
from orchestrator.agents.target import AgentTarget, Backoff, LinkSettings
from orchestrator.core.effects import (
    KillContext,
    LockContext,
    QueryOperation,
    StartRestore,
    StartSnapshot,
    UnlockContext,
)
from orchestrator.core.events import (
    AgentCallFailed,
    Event,
    Locked,
    NodeDisconnected,
    NodeObserved,
    OperationEnded,
    OperationPending,
    OperationUnknown,
    Together,
    Unlocked,
)
from orchestrator.core.types import AgentErrorKind, Epoch, OperationId
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb
from snapshot_agent.v1alpha1 import snapshot_agent_pb2_grpc as pb_grpc

AgentEffect = LockContext | UnlockContext | StartSnapshot | StartRestore | QueryOperation | KillContext
Post = Callable[[Event], None]


class HigherEpoch(Exception):
    """The agent follows a leader with a higher epoch: this orchestrator must not go on as it is.

    `above` is that epoch if this agent has never accepted ours: then there may be no other leader, but a store that was
    lost and counts from the beginning again.
    """

    def __init__(self, text: str, above: int | None) -> None:
        super().__init__(text)
        self.above = above


class AgentLink:
    """One agent. `run` keeps the connection; `perform` carries out the core's effects for its node."""

    def __init__(self, target: AgentTarget, epoch: Epoch, settings: LinkSettings, post: Post, dialer: Dialer) -> None:
        self.target = target
        self._dialer = dialer
        self._node = target.node
        self._epoch = epoch
        self._settings = settings
        self._post = post
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._orders: OrderStream
        self._stream: Any = None
        self._polled: PolledAgent | None = None
        self._is_connected = False
        self._was_told_lost = False
        self._was_accepted = False
        """Whether the agent has ever let us watch with our epoch."""
        self._unsent: dict[OperationId, StartRestore | None] = {}
        """Snapshots that are about to be sent, each with the restore that goes with it."""

    async def run(self) -> NoReturn:
        """Connect, follow, connect again, until cancelled. HigherEpoch: the agent follows somebody else."""
        async with self._dialer.channel(self.target.address) as self._channel:
            self._stub = pb_grpc.SnapshotAgentServiceStub(self._channel)  # type: ignore[no-untyped-call]
            self._orders = OrderStream(self._stub)
            backoff = Backoff(self._settings.reconnect_first_s, self._settings.reconnect_last_s)
            try:
                while True:
                    reason = await self._follow(backoff)
                    self._lost(reason)
                    await asyncio.sleep(backoff.next())
            finally:
                self._is_connected = False  # calls that have not begun find no closed channel
                self._orders.close()

    def announce(self, effect: AgentEffect) -> bool:
        """An effect is about to be performed; False: it need not be, for it goes with the snapshot that it follows."""
        if isinstance(effect, StartSnapshot):
            self._unsent[effect.operation] = None
        elif isinstance(effect, StartRestore) and effect.after in self._unsent and self._polled is None:
            self._unsent[effect.after] = effect
            return False
        return True

    async def perform(self, effect: AgentEffect) -> None:
        """Carry one effect out, which was announced, and post what became of it."""
        then = self._unsent.pop(effect.operation, None)
        if then is not None and self._is_connected and self._polled is None:
            await self._snapshot_then_restore(effect, then)
            return
        if then is not None:
            await asyncio.gather(self.perform(effect), self.perform(then))
            return
        if not self._is_connected:
            self._fail(effect, AgentErrorKind.UNANSWERED, f"node {self._node!r} is not connected")
        elif isinstance(effect, KillContext):
            await self._kill(effect)
        elif self._polled is not None:
            await self._polled.perform(effect)
        else:
            await self._perform(effect)

    # Following.

    async def _follow(self, backoff: Backoff) -> str:
        """Follow the agent until the connection breaks; why it did."""
        stream = self._stub.Watch(pb.WatchRequest(leader_epoch=self._epoch, takes_together=True))
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                message = await answer(stream.read())
            self._stream = stream
            while message is not grpc.aio.EOF:
                events = wire.events(self._node, message)
                if len(events) > 1 and not any(isinstance(event, NodeObserved) for event in events):
                    events = [Together(tuple(events))]
                for event in events:
                    if isinstance(event, NodeObserved):
                        self._polled = None
                        self._was_accepted = True
                        self._connected()
                        backoff.reset()
                    self._post(event)
                message = await answer(stream.read())
        except TimeoutError:
            return f"no answer within {self._settings.call_timeout_s:g} s"
        except AgentError as error:
            if error.code is grpc.StatusCode.UNIMPLEMENTED:
                return await self._poll(backoff)
            if error.code is grpc.StatusCode.FAILED_PRECONDITION:
                raise HigherEpoch(
                    f"the agent of node {self._node!r} refuses epoch {self._epoch} ({error});"
                    " another orchestrator leads, so this one stops",
                    None if self._was_accepted else await self._highest_epoch()) from error
            return str(error)
        finally:
            self._stream = None
            stream.cancel()
        return "the agent ended its stream"

    async def _highest_epoch(self) -> int | None:
        """The highest epoch that the agent has seen; None if it does not say."""
        try:
            status = await answer(self._stub.Status(
                pb.StatusRequest(per_context=True), timeout=self._settings.call_timeout_s))
        except AgentError:
            return None
        return max((fence.leader_epoch for fence in status.fences), default=None)

    async def _poll(self, backoff: Backoff) -> str:
        """Ask an agent of the old contract again and again, until it does not answer; why it did not."""
        if len(self.target.groups) > 1:
            named = ", ".join(group for group, _ in self.target.groups)
            return (f"its agent tells no groups (it has no Watch), so it cannot serve several ({named}): give it one,"
                    " or run an agent with the extensions there")
        if self._polled is None:
            self._polled = PolledAgent(self.target, self._stub, self._settings, self._post)
        try:
            await self._polled.observe()
            self._connected()  # no other task has run since the observation was posted
            backoff.reset()
            await self._polled.run()
        except AgentError as error:
            return str(error)
        finally:
            self._polled.forget_state()

    def _connected(self) -> None:
        self._is_connected, self._was_told_lost = True, False
        self._orders.forget()

    def _lost(self, reason: str) -> None:
        """Tell the core once per silence, not once per attempt."""
        self._is_connected = False
        if not self._was_told_lost:
            self._was_told_lost = True
            self._post(NodeDisconnected(self._node, reason))

    async def _suspect(self) -> None:
        """A call was not answered in time: break the stream unless the agent answers another one."""
        stream = self._stream
        try:
            await answer(self._stub.Status(
                pb.StatusRequest(per_context=True), timeout=self._settings.call_timeout_s))
        except AgentError:
            if stream is not None and stream is self._stream:
                stream.cancel()

    # Calling.

    async def _perform(
        self, effect: LockContext | UnlockContext | StartSnapshot | StartRestore | QueryOperation
    ) -> None:
        limit_s = self._settings.call_timeout_s
        match effect:
            case LockContext():
                locked = Locked(self._node, effect.operation)
                await self._order(effect, "lock", wire.lock_request(effect), effect.timeout_s + limit_s, locked)
            case UnlockContext():
                unlocked = Unlocked(self._node, effect.operation)
                await self._order(effect, "unlock", wire.unlock_request(effect), effect.timeout_s, unlocked)
            case StartSnapshot():
                await self._order(effect, "snapshot", wire.snapshot_request(effect), limit_s, None)
            case StartRestore():
                # Sent right behind the operation that it follows. Should the agent see it first, it waits a moment.
                await self._order(effect, "restore", wire.restore_request(effect), limit_s, None)
            case QueryOperation():
                await self._query(effect)

    async def _snapshot_then_restore(self, effect: AgentEffect, then: StartRestore) -> None:
        """Both in one call. An agent that does not know that is asked for the restore in a second one."""
        assert isinstance(effect, StartSnapshot), "restores go with snapshots"
        request = wire.snapshot_request(effect, then)
        try:
            accepted = await self._orders.order("snapshot", request, self._settings.call_timeout_s)
        except AgentError as error:
            self._fail(effect, error.kind, str(error))
            self._fail(then, error.kind, str(error))
            if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self._suspect()
            return
        if accepted.then_operation_id != then.operation:
            await self.perform(then)

    async def _order(
        self, effect: AgentEffect, kind: str, request: Any, timeout_s: float, done: Event | None
    ) -> None:
        """Give an order, and post `done` (None: its end comes later), or that it failed."""
        try:
            await self._orders.order(kind, request, timeout_s)
        except AgentError as error:
            self._fail(effect, error.kind, str(error))
            if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self._suspect()
            return
        if done is not None:
            self._post(done)

    async def _kill(self, effect: KillContext) -> None:
        """Ask for a context's end, which is then told as any context's."""
        if self._polled is not None:
            kind, text = AgentErrorKind.UNSUPPORTED, f"the agent of node {self._node!r} cannot kill processes"
        else:
            try:
                await answer(self._stub.Kill(wire.kill_request(effect), timeout=self._settings.call_timeout_s))
                return
            except AgentError as error:
                kind, text = error.kind, str(error)
        self._fail(effect, kind, text)

    async def _query(self, effect: QueryOperation) -> None:
        try:
            request = pb.GetOperationRequest(operation_id=effect.operation)
            told = await answer(self._stub.GetOperation(request, timeout=self._settings.call_timeout_s))
        except AgentError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                self._post(OperationUnknown(self._node, effect.operation))
                return
            self._fail(effect, AgentErrorKind.UNANSWERED, str(error))
            if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self._suspect()
            return
        if told.status == pb.OPERATION_STATUS_PENDING:
            self._post(OperationPending(self._node, effect.operation))
        else:
            self._post(OperationEnded(self._node, effect.operation, wire.result(told)))

    def _fail(self, effect: AgentEffect, kind: AgentErrorKind, text: str) -> None:
        self._post(AgentCallFailed(self._node, effect.operation, kind, text))
