"""The one place where the edges meet: an event loop that owns the core.

Whatever happens becomes an event; `post` gives it to the core and starts the effects that come back, at once and in
their order. Nothing waits in here, so nothing polls or sleeps between a Yield and the Acquire that it lets return.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, assert_never

from orchestrator.agents.pool import AgentPool
from orchestrator.api.server import OrchestratorService
from orchestrator.api.wire import Clock
from orchestrator.core.effects import (
    AnswerSession,
    Effect,
    ForgetEnded,
    ForgetNode,
    ForgetWaiter,
    KillContext,
    LockContext,
    NotifyLeaseLost,
    NotifyLeaseShared,
    Publish,
    QueryOperation,
    ReadRecord,
    Record,
    RecordWaiter,
    Refuse,
    ReplyAcquired,
    ReplyEvicted,
    ReplyQueued,
    ReplyYielded,
    StartRestore,
    StartSnapshot,
    StepDown,
    UnlockContext,
    WakeAt,
)
from orchestrator.core.events import Draining, Event, Together, Woken
from orchestrator.core.orchestrator import Orchestrator
from orchestrator.logs import say
from orchestrator.store.writer import GroupWriters, StoreWriter

KEPT_EVENTS = 50
"""So many of the last events are logged when the core fails: what a bug report needs."""


class SteppedDown(Exception):
    """This orchestrator must not act any more."""


class Shell:
    """Owns the core. `connect` names the edges before the first event; `run` then owns every task."""

    def __init__(self, core: Orchestrator, clock: Clock) -> None:
        self.core = core
        self._clock = clock
        self._inbox: deque[Event] = deque()
        self._from_agents: list[Event] = []
        self._is_handling = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._last_events: deque[tuple[float, Event]] = deque(maxlen=KEPT_EVENTS)
        self._failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()
        self._is_draining = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writer: StoreWriter | GroupWriters
        self._agents: AgentPool
        self._service: OrchestratorService

    def connect(
        self, writer: StoreWriter | GroupWriters, agents: AgentPool, service: OrchestratorService,
        tell: Callable[[Publish], None] = lambda _: None,
    ) -> None:
        """These carry out the effects; `tell` hears besides what is published, and must not wait."""
        self._writer, self._agents, self._service, self._tell = writer, agents, service, tell

    def post(self, event: Event) -> None:
        """Something happened. Never waits; an event that an effect causes is handled after the present one."""
        if self._is_closed:
            return
        self._inbox.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._inbox:
                self._handle(self._inbox.popleft())
        except Exception as error:
            self._fail(error)
        finally:
            self._is_handling = False
        if self._is_draining and not self.core.unsettled():
            self._settled.set()

    def post_from_agent(self, event: Event) -> None:
        """As `post`, at the end of this turn of the loop: what several agents tell at once is decided on once."""
        self._from_agents.append(event)
        if len(self._from_agents) == 1:
            asyncio.get_running_loop().call_soon(self._post_together)

    def _post_together(self) -> None:
        events, self._from_agents = self._from_agents, []
        self.post(events[0] if len(events) == 1 else Together(tuple(events)))

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run this until it ends; if it fails, everything stops."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def failure(self) -> NoReturn:
        """Wait until something fails, and raise it."""
        await self._failed
        raise AssertionError("the future only ever fails")

    async def settle(self, grace_s: float) -> bool:
        """Wait until no switch is under way, at most so long; whether that came true."""
        self._is_draining = True
        self._settled.clear()
        self.post(Draining())
        if not self.core.unsettled():
            return True
        try:
            async with asyncio.timeout(grace_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Handle no further event, and end every task."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _handle(self, event: Event) -> None:
        now = self._clock.now()
        self._last_events.append((now, event))
        for effect in self.core.handle(event, now):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case WakeAt(at_s):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_at(at_s, self.post, Woken())
            case Record() | ReadRecord() | RecordWaiter() | ForgetWaiter() | ForgetEnded():
                self._writer.perform(effect)
            case ReplyYielded():
                # The next job waits for what is sent to agents now; who gave the group back can wait that long.
                asyncio.get_running_loop().call_soon(self._service.perform, effect)
            case (ReplyAcquired() | ReplyQueued() | ReplyEvicted() | Refuse() | AnswerSession()
                  | NotifyLeaseLost() | NotifyLeaseShared()):
                self._service.perform(effect)
            case (LockContext() | UnlockContext() | StartSnapshot() | StartRestore() | QueryOperation()
                  | KillContext()):
                self._agents.perform(effect)
            case ForgetNode(node):
                self._agents.forget(node)
            case Publish():
                _log(effect)
                self._service.perform(effect)
                self._tell(effect)
            case StepDown(reason):
                raise SteppedDown(reason)
            case _:
                assert_never(effect)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._is_closed = True
        if not self._failed.done():
            self._failed.set_exception(error)
            if not isinstance(error, SteppedDown):
                for at_s, event in self._last_events:
                    say("before the failure", level=logging.ERROR, at_s=at_s, event=repr(event))


WARNINGS = frozenset(
    {"blocked", "faulted", "kill_failed", "misconfigured", "overlapped", "store_failed", "unexplained"})
"""Events after which a person may want to act."""


def _log(published: Publish) -> None:
    say(
        partial(_words, published), group=published.group, kind=published.kind, job=published.job, node=published.node,
        token=published.token, level=logging.WARNING if published.kind in WARNINGS else logging.INFO,
        ms=None if published.duration_s is None else round(published.duration_s * 1000, 3))


def _words(published: Publish) -> str:
    parts = [f"group {published.group}: {published.kind.replace('_', ' ')}"]
    if published.job:
        parts.append(f"job {published.job}")
    if published.node:
        parts.append(f"node {published.node}")
    if published.detail:
        parts.append(published.detail)
    return ", ".join(parts)
