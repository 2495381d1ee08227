"""The agent's record on disk: SQLite, one thread, one transaction for all that is asked at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from snapshot_agent_server.store import lock
from snapshot_agent_server.store.lock import StoreError

SCHEMA = 1

Statement = tuple[str, tuple[object, ...]]
_Commit = tuple[Sequence[Statement], Callable[[BaseException | None], None], asyncio.AbstractEventLoop]


class Store:
    """Opens (and makes) DIR/agent.db, and holds the folder's lock until it is closed.

    Raises: StoreError; the lock is free then.
    """

    def __init__(self, folder: Path, lock_fd: int | None = None) -> None:
        """`lock_fd`: the lock, if it was taken before; it belongs to the store from now on."""
        self._lock_fd = lock.take(folder) if lock_fd is None else lock_fd
        path = folder / "agent.db"
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._prepare(path)
        except sqlite3.DatabaseError as error:
            os.close(self._lock_fd)
            raise StoreError(
                f"{path} cannot be used: {error}. Nothing was changed; move the file away to start without its fences"
                " and registrations, or restore it from a copy"
            ) from error
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._wanted: SimpleQueue[_Commit | None] = SimpleQueue()
        # A daemon: a program that ends without `close` loses what nobody was told is written.
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
        self._thread.start()

    def _prepare(self, path: Path) -> None:
        # Looked at before anything is written: a file of a newer version, or one that is not ours, stays as it is.
        (version,) = self._db.execute("pragma user_version").fetchone()
        if version > SCHEMA:
            self._db.close()
            raise StoreError(
                f"{path} was written by a newer version (schema {version}, this agent knows {SCHEMA});"
                " nothing was changed. Upgrade the agent, or use another --state-dir"
            )
        (verdict,) = self._db.execute("pragma quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.execute("begin immediate")
        for statement in _TABLES:
            self._db.execute(statement)
        self._db.execute(f"pragma user_version = {SCHEMA}")
        self._db.execute("commit")

    def read(self, query: str) -> list[tuple[object, ...]]:
        """For start-up, before the first commit."""
        return self._db.execute(query).fetchall()

    def write(self, statements: Sequence[Statement]) -> None:
        """For start-up, before the first commit: done when it returns."""
        self._commit(statements)

    def commit(self, statements: Sequence[Statement], written: Callable[[BaseException | None], None]) -> None:
        """All or nothing, starting now. `written` is called from the loop when it is on disk (None), or when it is not
        and nothing was changed: sqlite3.Error, or a bug."""
        self._wanted.put((statements, written, asyncio.get_running_loop()))

    def close(self) -> None:
        self._wanted.put(None)
        self._thread.join()
        self._db.close()
        os.close(self._lock_fd)

    def _serve(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            statements, written, loop = wanted
            error: BaseException | None = None
            try:
                self._commit(statements)
            except BaseException as failure:  # it is for the loop to say what becomes of it
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
                loop.call_soon_threadsafe(written, error)

    def _commit(self, statements: Sequence[Statement]) -> None:
        self._db.execute("begin immediate")
        try:
            for sql, values in statements:
                self._db.execute(sql, values)
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise


_TABLES = (
    "create table if not exists fences (group_id text primary key, token integer not null)",
    "create table if not exists facts (name text primary key, value text not null)",
    "create table if not exists turns (group_id text primary key, turn text not null)",
    """create table if not exists processes (
        pid integer not null, start_time integer not null, job text not null, group_id text not null,
        usage text not null, saved text not null, primary key (pid, start_time))""",
    """create table if not exists trees (
        job text not null, group_id text not null, pid integer not null, start_time integer not null,
        record text not null, primary key (job, group_id, pid, start_time))""",
    """create table if not exists workloads (
        job text not null, group_id text not null, record text not null, primary key (job, group_id))""",
    "create table if not exists operations (id text primary key, sequence integer not null, record text not null)",
    # Each record of an operation asks for the highest sequence, of up to 10,000.
    "create index if not exists operations_by_sequence on operations (sequence)",
)
