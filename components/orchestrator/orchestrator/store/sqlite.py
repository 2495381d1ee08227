"""One file, one writer: SQLite in WAL mode with synchronous=FULL, so what `write` returned for survives a power cut.

All SQL runs in one thread of its own: a slow disk delays writes, never the event loop. A file lock beside the database
keeps a second orchestrator out for as long as the first process lives, however it ends.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.effects import ForgetEnded, ForgetWaiter, Publish, Record, RecordWaiter
from orchestrator.core.types import EndedLease, Epoch, GroupId, GroupRecord, GroupView, WaiterRecord
from orchestrator.store.codec import BadRecord, Codec
from orchestrator.store.interface import Deposed, Loaded, StoreFailed, StoreRefused, StoreUnclear, Write
from orchestrator.store.own_thread import OwnThread

SCHEMA_VERSION = 1
APPLICATION_ID = 0x54534C43
"""Marks the file as ours ("TSLC"), so that a database of something else is not taken for an empty store."""

FILE_NAME = "orchestrator.db"
LOCK_NAME = "orchestrator.lock"

_SCHEMA = """
CREATE TABLE leader (id INTEGER PRIMARY KEY CHECK (id = 0), epoch INTEGER NOT NULL);
INSERT INTO leader VALUES (0, 0);
CREATE TABLE groups (group_id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE ended (group_id TEXT, token INTEGER, record TEXT NOT NULL, PRIMARY KEY (group_id, token)) WITHOUT ROWID;
CREATE TABLE waiters (group_id TEXT, request TEXT, record TEXT NOT NULL, PRIMARY KEY (group_id, request)) WITHOUT ROWID;
"""

_INDETERMINATE = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_INTERRUPT}
"""Primary result codes after which a COMMIT may have reached the disk all the same."""

_GROUPS, _ENDED, _WAITERS = Codec(GroupRecord), Codec(EndedLease), Codec(WaiterRecord)


class SqliteStore:
    """The store of one machine. Made by `open`, which also raises the epoch."""

    writes_groups_apart = False

    def __init__(self, connection: sqlite3.Connection, thread: OwnThread, lock: int, epoch: Epoch) -> None:
        self._connection = connection
        self._thread = thread
        self._lock = lock
        self._epoch = epoch
        self._is_durable = True
        """Whether the connection is set to wait for the disk at each commit."""

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @classmethod
    async def open(cls, folder: Path) -> "SqliteStore":
        """Take the store in `folder`, making it if there is none, and raise its epoch durably.

        StoreRefused says what is wrong with the folder or the file; neither is changed then.
        """
        lock = _take_lock(folder)
        thread = OwnThread("store")
        try:
            connection, epoch = await thread.call(lambda: _open(folder / FILE_NAME))
        except BaseException:
            thread.stop()
            os.close(lock)
            raise
        return cls(connection, thread, lock, epoch)

    async def load(self) -> Loaded:
        return await self._thread.call(self._load)

    async def read(self, group: GroupId) -> GroupRecord | None:
        return await self._thread.call(lambda: self._read(group))

    def write(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        return self._thread.call(lambda: self._transaction(writes))

    async def raise_epoch(self, above: int) -> Epoch:
        self._epoch = await self._thread.call(lambda: self._raise_epoch(above))
        return self._epoch

    def show_by(self, view: Callable[[GroupId], GroupView | None], wall: Callable[[float], float]) -> None:
        """Nobody looks here."""

    def tell(self, published: Publish) -> None:
        """Nobody looks here."""

    async def close(self) -> None:
        await self._thread.call(self._connection.close)
        self._thread.stop()
        os.close(self._lock)

    def _load(self) -> Loaded:
        return Loaded(
            tuple(self._all(_GROUPS, "SELECT record FROM groups ORDER BY group_id")),
            tuple(self._all(_ENDED, "SELECT record FROM ended ORDER BY group_id, token")),
            tuple(self._all(_WAITERS, "SELECT record FROM waiters ORDER BY group_id, request")))

    def _all(self, codec: Codec, query: str) -> list[Any]:
        try:
            return [codec.from_data(json.loads(text)) for (text,) in self._connection.execute(query)]
        except (sqlite3.Error, ValueError, BadRecord) as error:
            raise StoreRefused(_damaged(str(error))) from error

    def _read(self, group: GroupId) -> GroupRecord | None:
        try:
            row = self._connection.execute("SELECT record FROM groups WHERE group_id = ?", (group,)).fetchone()
            return None if row is None else _GROUPS.from_data(json.loads(row[0]))
        except (sqlite3.Error, ValueError, BadRecord) as error:
            raise StoreFailed(f"the record of group {group!r} cannot be read: {error}") from error

    def _raise_epoch(self, above: int) -> Epoch:
        epoch = Epoch(max(above, self._epoch) + 1)
        self._transaction([], epoch)
        return epoch

    def _transaction(self, writes: Sequence[Write], new_epoch: Epoch | None = None) -> None:
        is_committing = False
        is_durable = new_epoch is not None or any(isinstance(write, Record) for write in writes)
        try:
            if is_durable != self._is_durable:
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
                self._is_durable = is_durable
            self._connection.execute("BEGIN IMMEDIATE")
            [stored] = self._connection.execute("SELECT epoch FROM leader").fetchone()
            if stored != self._epoch:
                raise Deposed(self._epoch, stored)
            if new_epoch is not None:
                self._connection.execute("UPDATE leader SET epoch = ?", (new_epoch,))
            for write in writes:
                self._apply(write)
            is_committing = True
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if is_committing and error.sqlite_errorcode & 0xFF in _INDETERMINATE:
                raise StoreUnclear(f"the store did not say whether a write succeeded: {error}") from error
            raise StoreFailed(f"the store refused a write: {error}; free disk space or mend the folder") from error
        except BaseException:
            self._roll_back()
            raise

    def _apply(self, write: Write) -> None:
        execute = self._connection.execute
        match write:
            case Record(record, ended):
                execute("INSERT OR REPLACE INTO groups VALUES (?, ?)", (record.group, _json(_GROUPS, record)))
                for lease in ended:
                    execute("INSERT OR REPLACE INTO ended VALUES (?, ?, ?)",
                            (lease.group, lease.token, _json(_ENDED, lease)))
            case RecordWaiter(waiter):
                execute("INSERT OR REPLACE INTO waiters VALUES (?, ?, ?)",
                        (waiter.group, waiter.request, _json(_WAITERS, waiter)))
            case ForgetWaiter(group, request):
                execute("DELETE FROM waiters WHERE group_id = ? AND request = ?", (group, request))
            case ForgetEnded(group, up_to):
                execute("DELETE FROM ended WHERE group_id = ? AND token <= ?", (group, up_to))

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            # It may have rolled back by itself, which in_transaction does not show yet.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _json(codec: Codec, record: Any) -> str:
    return _encode(codec.to_data(record))


def _take_lock(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreRefused(
            f"cannot write in state folder {str(folder)!r} ({error.strerror}); choose another --state-dir"
            " or change its permissions") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreRefused(
            f"state folder {str(folder)!r} is in use by another orchestrator; stop that one"
            " or choose another --state-dir") from error
    return lock


def _open(path: Path) -> tuple[sqlite3.Connection, Epoch]:
    try:
        is_new = not path.exists() or path.stat().st_size == 0
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    except (OSError, sqlite3.Error) as error:
        raise StoreRefused(f"cannot open store {str(path)!r} ({error}); choose another --state-dir") from error
    try:
        if not is_new:
            _check(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if is_new:
            connection.executescript(
                f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
                f"{_SCHEMA} COMMIT;")
        connection.execute("UPDATE leader SET epoch = epoch + 1")
        [epoch] = connection.execute("SELECT epoch FROM leader").fetchone()
    except (sqlite3.Error, TypeError) as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
                                                           sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY):
            raise StoreRefused(
                f"cannot write store {str(path)!r} ({error}); free disk space, change its permissions"
                " or choose another --state-dir") from error
        raise StoreRefused(_damaged(str(error), path)) from error
    except BaseException:
        connection.close()
        raise
    return connection, Epoch(epoch)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Look at an existing file without changing a byte of it."""
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise StoreRefused(f"{str(path)!r} is not a store of this orchestrator; choose another --state-dir")
    if version > SCHEMA_VERSION:
        raise StoreRefused(
            f"store {str(path)!r} has schema version {version}, newer than {SCHEMA_VERSION}, which this orchestrator"
            " reads; start the newer release again, or choose another --state-dir")
    problems = [text for (text,) in connection.execute("PRAGMA quick_check(1)") if text != "ok"]
    if problems:
        raise StoreRefused(_damaged(problems[0], path))


def _damaged(problem: str, path: Path | None = None) -> str:
    named = f"store {str(path)!r}" if path else "the store"
    first_line = problem.splitlines()[0] if problem else "unknown"
    return (f"{named} is damaged ({first_line}); nothing was changed. Put a good copy in its place, or move it away"
            " to start empty: tokens then start above what the agents know")
