"""The agent's record on disk: SQLite, one thread, one transaction for all that is asked at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SCHEMA = 1

Statement = tuple[str, tuple[object, ...]]


class StoreError(Exception):
    """The folder or the file cannot be used. The text says what to do."""


class Store:
    """Opens (and makes) DIR/agent.db and holds DIR/agent.lock, so that no second agent uses it.

    Raises: StoreError.
    """

    def __init__(self, folder: Path) -> None:
        self._lock_fd = _lock(folder)
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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

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

    def commit(self, statements: Sequence[Statement]) -> asyncio.Future[None]:
        """All or nothing, starting now; when done it is on disk. sqlite3.Error: nothing was changed."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._commit, statements)

    def close(self) -> None:
        self._thread.shutdown()
        self._db.close()
        os.close(self._lock_fd)

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


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"the state folder {folder} cannot be written ({error.strerror}); choose another with --state-dir"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreError(
            f"another snapshot agent (process {other}) uses the state folder {folder}; stop it, or choose another"
            " with --state-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
