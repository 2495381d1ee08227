"""Keeps the record: one transaction at a time, with all that has come in meanwhile in the next one."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence

from snapshot_agent_server import logs
from snapshot_agent_server.core.dispatch import LAZY, Held
from snapshot_agent_server.core.effects import Ahead, Record
from snapshot_agent_server.store.records import to_statement
from snapshot_agent_server.store.sqlite import Statement, Store

log = logging.getLogger("snapshot_agent")

RETRY_S = 0.5
LAZY_S = 0.05
"""Records that nobody waits for ride with the next that somebody does, or go alone after this."""
SOON_S = 0.001
"""When a turn is to be on disk and nothing waits for it, what is told of the same event goes first: the thread that
writes takes the interpreter from it."""


class RecordWriter:
    """A disk that is full or broken holds up what needs a record, until it takes one again; nothing is dropped."""

    def __init__(self, store: Store, perform: Callable[[Held], None]) -> None:
        self._store = store
        self._perform = perform
        self._statements: list[Statement] = []
        self._held: list[Held] = []
        """What waits for the next write."""
        self._level = LAZY
        """Of what is in the next write; see dispatch.py."""
        self._is_writing = False
        self._held_by_write: list[Held] = []
        self._level_of_write = LAZY
        self._is_failing = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._broken: asyncio.Future[None] | None = None

    @property
    def holding(self) -> int:
        """The highest level of what is not on disk yet; LAZY: nothing that anybody waits for."""
        return max(self._level, self._level_of_write)

    def add(self, records: Sequence[Record], held: Sequence[Held], level: int) -> None:
        """Write records (they are copied now), at once or soon; let `held` be performed when these and all before that
        are not lazy are on disk.
        """
        self._statements += [to_statement(record) for record in records]
        is_due = self._level > LAZY
        self._level = max(self._level, level)
        if self._is_writing and self._level == LAZY:
            self._held_by_write += held
        else:
            self._held += held
        self._idle.clear()
        if self._is_writing:
            return
        if self._level > Ahead.TURN or (self._level > LAZY and held):
            self._begin()
        elif self._level > LAZY and not is_due:
            self._begin_after(SOON_S)
        elif self._timer is None:
            self._begin_after(LAZY_S)

    async def idle(self) -> None:
        await self._idle.wait()

    async def run(self) -> None:
        """Raises what a write raised that was no failure of the disk."""
        self._broken = asyncio.get_running_loop().create_future()
        await self._broken

    def _break(self, error: BaseException) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _begin_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        statements, self._statements = self._statements, []
        self._held_by_write, self._held = self._held, []
        self._level_of_write, self._level = self._level, LAZY
        self._is_writing = True
        self._submit(statements)

    def _submit(self, statements: list[Statement]) -> None:
        self._store.commit(statements, lambda error: self._written(error, statements))

    def _written(self, error: BaseException | None, statements: list[Statement]) -> None:
        if isinstance(error, sqlite3.Error):
            if not self._is_failing:
                self._is_failing = True
                logs.transition(log, logging.ERROR, f"the state folder takes no records: {error}; trying on")
            asyncio.get_running_loop().call_later(RETRY_S, self._submit, statements)
            return
        if error is not None:
            self._break(error)
            return
        if self._is_failing:
            self._is_failing = False
            logs.transition(log, logging.INFO, "the state folder takes records again")
        self._is_writing, self._level_of_write = False, LAZY
        held, self._held_by_write = self._held_by_write, []
        try:
            for effect in held:
                self._perform(effect)
        except Exception as failure:  # a callback of the loop, which nobody awaits: `run` raises it
            self._break(failure)
            return
        if self._statements or self._held:
            self._begin()
        else:
            self._idle.set()
