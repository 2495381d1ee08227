"""The core's writes, in order, as many in one transaction as have gathered while the last one was under way."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from orchestrator.core.effects import ReadRecord, Record
from orchestrator.core.events import Event, ReadFailed, Recorded, RecordFailed, RecordRead, RecordUnclear
from orchestrator.store.interface import Store, StoreFailed, StoreUnclear, Write


class StoreWriter:
    """Carries out the core's store effects one batch at a time, and posts what became of each."""

    def __init__(self, store: Store, post: Callable[[Event], None]) -> None:
        self._store = store
        self._post = post
        self._pending: list[Write | ReadRecord] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def perform(self, effect: Write | ReadRecord) -> None:
        """Take it into the next batch."""
        self._pending.append(effect)
        self._wake.set()
        self._idle.clear()

    async def run(self) -> NoReturn:
        """Write what gathers, until cancelled. Deposed ends it: somebody else leads."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            await self._carry_out(batch)
            if not self._pending:
                self._idle.set()

    async def drained(self) -> None:
        """Wait until nothing is left to write."""
        await self._idle.wait()

    async def _carry_out(self, batch: list[Write | ReadRecord]) -> None:
        """Reads stand between the writes before and after them."""
        writes: list[Write] = []
        for effect in batch:
            if isinstance(effect, ReadRecord):
                await self._write(writes)
                writes = []
                await self._read(effect)
            else:
                writes.append(effect)
        await self._write(writes)

    async def _write(self, writes: list[Write]) -> None:
        if not writes:
            return
        records = [write.record for write in writes if isinstance(write, Record)]
        try:
            await self._store.write(writes)
        except StoreFailed as error:
            for record in records:
                self._post(RecordFailed(record.group, record.version, str(error)))
        except StoreUnclear as error:
            for record in records:
                self._post(RecordUnclear(record.group, record.version, str(error)))
        else:
            for record in records:
                self._post(Recorded(record.group, record.version))

    async def _read(self, effect: ReadRecord) -> None:
        try:
            record = await self._store.read(effect.group)
        except StoreFailed as error:
            self._post(ReadFailed(effect.group, str(error)))
        else:
            self._post(RecordRead(effect.group, record))
