"""Where a link under test posts its events."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from orchestrator.agents.dialing import PLAIN, Dialer
from orchestrator.agents.fake import FakeAgent
from orchestrator.agents.pool import AgentPool
from orchestrator.agents.target import AgentTarget, LinkSettings
from orchestrator.core.effects import KillContext, LockContext, StartRestore, StartSnapshot, UnlockContext
from orchestrator.core.events import Event, Together
from orchestrator.core.types import Epoch, GroupId, JobId, NodeId, OperationId, Token

E = TypeVar("E")
N1, G = NodeId("n1"), GroupId("g")
QUICK = LinkSettings(call_timeout_s=0.3, reconnect_last_s=0.05)
LIMIT_S = 10.0


class Inbox:
    """Events in the order of their arrival; `next_of` takes them out."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def post(self, event: Event) -> None:
        for one in event.events if isinstance(event, Together) else (event,):
            self._events.put_nowait(one)

    async def next_of(self, kind: type[E], **fields: Any) -> E:
        """The next event of this kind with these fields; events before it are dropped."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                event = await self._events.get()
                if isinstance(event, kind) and all(getattr(event, k) == v for k, v in fields.items()):
                    return event

    def rest(self) -> list[Event]:
        """What has arrived and was not taken."""
        return [self._events.get_nowait() for _ in range(self._events.qsize())]


@asynccontextmanager
async def linked(
    agent: FakeAgent, folder: Path, *, settings: LinkSettings = QUICK, epoch: int = 5,
    groups: tuple[str, ...] = ("g",), is_started: bool = True, listen: str = "",
    credentials: grpc.ServerCredentials | None = None, dialer: Dialer = PLAIN,
) -> AsyncIterator[tuple[AgentPool, Inbox]]:
    """A pool with one node, n1, whose agent is `agent`, on a unix socket unless `listen` says otherwise."""
    inbox = Inbox()
    async with asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            task = tasks.create_task(work, name=name)
            running.append(task)
            return task

        where = listen or address(folder)
        if is_started:
            await agent.start(where, credentials)
            where = where.replace(":0", f":{agent.port}") if listen else where
        pool = AgentPool(Epoch(epoch), settings, inbox.post, spawn, dialer)
        pool.set_targets([AgentTarget(N1, where, tuple((GroupId(g), ()) for g in groups))])
        try:
            yield pool, inbox
        finally:
            for task in running:
                task.cancel()
            await agent.stop()


def address(folder: Path) -> str:
    return f"unix:{folder}/agent.sock"


def lock(job: str, operation: str = "lock-1", *, token: int = 7, epoch: int = 5, timeout_s: float = 1.0) -> LockContext:
    return LockContext(node=N1, operation=OperationId(operation), group=G, job=JobId(job), token=Token(token),
                       epoch=Epoch(epoch), timeout_s=timeout_s)


def unlock(job: str, operation: str = "unlock-1", *, token: int = 7, epoch: int = 5) -> UnlockContext:
    return UnlockContext(node=N1, operation=OperationId(operation), group=G, job=JobId(job), token=Token(token),
                         epoch=Epoch(epoch), timeout_s=1.0)


def kill(job: str, operation: str = "kill-1", *, token: int = 7) -> KillContext:
    return KillContext(node=N1, operation=OperationId(operation), group=G, job=JobId(job), token=Token(token),
                       epoch=Epoch(5), reason="it cannot be saved")


def snapshot(
    job: str, operation: str = "save-1", *, token: int = 7, epoch: int = 5, timeout_s: float = 5.0
) -> StartSnapshot:
    return StartSnapshot(node=N1, operation=OperationId(operation), group=G, job=JobId(job), token=Token(token),
                         epoch=Epoch(epoch), timeout_s=timeout_s)


def restore(job: str, operation: str = "load-1", *, after: str | None = None, token: int = 7) -> StartRestore:
    return StartRestore(node=N1, operation=OperationId(operation), group=G, job=JobId(job), token=Token(token),
                        epoch=Epoch(5), timeout_s=5.0, after=OperationId(after) if after else None)
