"""The record on disk: what survives, and what is refused in one line."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot_agent_server.core.dispatch import LAZY
from snapshot_agent_server.core.effects import (
    Ahead,
    Effect,
    ForgetProcess,
    ForgetTrees,
    ForgetWorkload,
    RecordEpoch,
    RecordFence,
    RecordOperation,
    RecordProcess,
    RecordTree,
    RecordTurn,
    RecordWorkload,
    TakeSample,
)
from snapshot_agent_server.core.ids import (
    AcceleratorId,
    CommandId,
    ContextKey,
    GroupId,
    JobId,
    OperationId,
    ProcessId,
)
from snapshot_agent_server.core.modes import Backend, Mode, Wish
from snapshot_agent_server.core.operations import Kind, Operation, Phase, Result, Status, Work
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.trees import Tree
from snapshot_agent_server.core.turn import Turn
from snapshot_agent_server.core.workloads import Command, Workload, WorkloadState
from snapshot_agent_server.store.lock import StoreError
from snapshot_agent_server.store.records import boot_statements, read_memory, to_statement
from snapshot_agent_server.store.sqlite import SCHEMA, Store
from snapshot_agent_server.store.writer import RecordWriter

KEY = ContextKey(JobId("a"), GroupId("g"))
OTHER = ContextKey(JobId("b"), GroupId("g"))
GPU = AcceleratorId("GPU-0")
TREE = Tree(ProcessId(5, 50), uid=1000, keeper=ProcessId(4, 40), cgroup="freezer:/jobs/a", marker="m" * 16)
GONE = ContextKey(JobId("c"), GroupId("g"))
WORKLOAD = Workload(
    key=KEY,
    instance="i",
    server=ProcessId(5, 50),
    modes=(Mode.OFFLOAD, Mode.DISCARD),
    default_mode=Mode.DISCARD,
    tags=("weights",),
    state=WorkloadState.SAVED,
    discarded=("weights",),
    command=Command(CommandId("c"), OperationId("running"), Kind.RESTORE, Mode.OFFLOAD, ("weights",), 2.5),
)


def operation(name: str, phase: Phase) -> Operation:
    made = Operation(
        id=OperationId(name),
        kind=Kind.RESTORE,
        keys=(KEY,),
        accepted_at=1.5,
        deadline=121.5,
        token=7,
        epoch=2,
        is_left_locked=True,
        after=OperationId("other"),
        phase=phase,
        work={ProcessId(5, 50): Work(DriverState.CHECKPOINTED)},
        error="why",
        is_timeout=True,
        turns_before={GroupId("g"): Turn(None, frozenset({JobId("a")}))},
        started_at=2.0,
        wish=Wish(Backend.APP_CHANNEL, Mode.DISCARD, ("weights",)),
        backend=Backend.APP_CHANNEL,
        has_moved=True,
    )
    if phase is Phase.ENDED:
        made.ended_at = 3.0
        made.result = Result(Status.FAILED, 1, 2, "why", is_rolled_back=True, step_us={"lock": 3}, discarded=("w",))
    return made


def test_all_of_it_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ended, running = operation("ended", Phase.ENDED), operation("running", Phase.ROLLBACK)
    records = [
        RecordFence(GroupId("g"), 7),
        RecordEpoch(2),
        RecordTurn(GroupId("g"), Turn(JobId("a"), frozenset({JobId("b"), JobId("c")}))),
        RecordTurn(GroupId("h"), Turn()),
        RecordProcess(ProcessId(5, 50), KEY, {GPU: 10}, {}),
        RecordProcess(ProcessId(6, 60), KEY, {}, {}),
        ForgetProcess(ProcessId(6, 60)),
        RecordTree(KEY, TREE),
        RecordTree(KEY, TREE),
        RecordTree(KEY, replace(TREE, root=ProcessId(6, 60), keeper=None)),
        RecordTree(OTHER, TREE),
        ForgetTrees(OTHER),
        RecordWorkload(WORKLOAD),
        RecordWorkload(replace(WORKLOAD, key=OTHER, server=None, command=None)),
        RecordWorkload(replace(WORKLOAD, key=GONE)),
        ForgetWorkload(GONE),
        RecordOperation(running),
        RecordOperation(ended),
    ]
    store.write([*boot_statements("boot"), *(to_statement(record) for record in records)])
    store.close()
    store = Store(tmp_path)
    memory = read_memory(store, "boot")
    assert (memory.tokens, memory.epoch) == ({"g": 7}, 2)
    assert memory.turns == {"g": Turn(JobId("a"), frozenset({JobId("b"), JobId("c")})), "h": Turn()}
    [(key, record)] = memory.processes
    assert (key, record.id, record.usage) == (KEY, ProcessId(5, 50), {GPU: 10})
    assert list(memory.operations) == [running, ended]
    assert list(memory.workloads) == [WORKLOAD, replace(WORKLOAD, key=OTHER, server=None, command=None)]
    store.close()
    assert list(memory.trees) == [(KEY, TREE), (KEY, replace(TREE, root=ProcessId(6, 60), keeper=None))]


def test_after_a_reboot_processes_are_forgotten_and_operations_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    records = [RecordFence(GroupId("g"), 7), RecordProcess(ProcessId(5, 50), KEY, {}, {})]
    records += [RecordWorkload(WORKLOAD), RecordOperation(operation("running", Phase.FORWARD))]
    store.write([*boot_statements("boot"), *(to_statement(record) for record in records)])
    memory = read_memory(store, "another boot")
    assert memory.tokens == {"g": 7}
    assert not memory.processes
    assert not memory.workloads
    [cut_off] = memory.operations
    assert cut_off.result is not None
    assert cut_off.result.is_gone
    store.close()


def test_the_record_of_an_operation_does_not_walk_through_all_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sql, values = to_statement(RecordOperation(Operation(OperationId("o"), Kind.LOCK, (KEY,), 1.0, 2.0)))
    plan = [str(row[3]) for row in store._db.execute("explain query plan " + sql, values)]
    assert plan
    assert not [line for line in plan if line.startswith("SCAN operations") and "INDEX" not in line]
    store.close()


def test_a_second_agent_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    code = "import sys, pathlib; from snapshot_agent_server.store.sqlite import Store; Store(pathlib.Path(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    second = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, env=env, check=False
    )
    assert f"another snapshot agent (process {os.getpid()})" in second.stderr
    store.close()
    Store(tmp_path).close()


def test_a_file_of_a_newer_version_stays_as_it_is(tmp_path: Path) -> None:
    Store(tmp_path).close()
    db = sqlite3.connect(tmp_path / "agent.db")
    db.execute(f"pragma user_version = {SCHEMA + 1}")
    db.close()
    before = (tmp_path / "agent.db").read_bytes()
    with pytest.raises(StoreError, match=f"newer version.*schema {SCHEMA + 1}"):
        Store(tmp_path)
    assert (tmp_path / "agent.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_corrupt_file_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent.db").write_bytes(content)
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path)
    assert (tmp_path / "agent.db").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--state-dir"):
        Store(tmp_path / "file" / "below")


class BrokenStore:
    """A disk that is full until told otherwise."""

    def __init__(self) -> None:
        self.is_full = True
        self.tried = asyncio.Event()
        self.written = 0

    def commit(self, statements: list[object], written: Callable[[BaseException | None], None]) -> None:
        error = sqlite3.OperationalError("database or disk is full") if self.is_full else None
        if error is None:
            self.written += len(statements)
        asyncio.get_running_loop().call_soon(written, error)
        self.tried.set()


async def test_a_commit_is_on_disk_when_it_is_said_so_and_all_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    said: asyncio.Queue[BaseException | None] = asyncio.Queue()
    fence = to_statement(RecordFence(GroupId("g"), 7))
    store.commit([fence], said.put_nowait)
    store.commit([to_statement(RecordFence(GroupId("h"), 8)), ("insert into nowhere values (1)", ())], said.put_nowait)
    async with asyncio.timeout(5.0):
        assert await said.get() is None
        assert isinstance(await said.get(), sqlite3.Error)
    other = sqlite3.connect(tmp_path / "agent.db")
    assert other.execute("select group_id, token from fences").fetchall() == [("g", 7)]
    other.close()
    store.close()


async def test_what_needs_a_record_waits_for_a_full_disk_and_goes_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshot_agent_server.store.writer.RETRY_S", 0.01)
    store = BrokenStore()
    performed: list[Effect] = []
    writer = RecordWriter(store, performed.append)  # type: ignore[arg-type]
    writer.add([RecordEpoch(1)], [TakeSample()], Ahead.ORDER)
    await store.tried.wait()
    assert writer.holding == Ahead.ORDER
    assert not performed
    store.is_full = False
    async with asyncio.timeout(5.0):
        await writer.idle()
    assert (store.written, performed) == (1, [TakeSample()])


async def test_what_comes_while_a_record_is_written_waits_for_that_write_and_no_other() -> None:
    store = BrokenStore()
    store.is_full = False
    written_then: list[int] = []
    writer = RecordWriter(store, lambda _: written_then.append(store.written))  # type: ignore[arg-type]
    writer.add([RecordEpoch(1)], [TakeSample()], Ahead.ORDER)
    assert writer.holding == Ahead.ORDER
    writer.add([RecordEpoch(2)], [TakeSample()], LAZY)
    assert not written_then
    async with asyncio.timeout(5.0):
        await writer.idle()
    assert writer.holding == LAZY
    assert written_then == [1, 1], "performed behind the first write"
    assert store.written == 2


async def test_a_turn_that_nothing_waits_for_is_written_soon_or_with_what_somebody_waits_for() -> None:
    store = BrokenStore()
    store.is_full = False
    performed: list[Effect] = []
    writer = RecordWriter(store, performed.append)  # type: ignore[arg-type]
    turn = RecordTurn(GroupId("g"), Turn())
    writer.add([turn], [], Ahead.TURN)
    assert writer.holding == Ahead.TURN
    assert not store.tried.is_set(), "what is told of the same event goes first"
    async with asyncio.timeout(5.0):
        await writer.idle()
    writer.add([turn], [], Ahead.TURN)
    writer.add([], [TakeSample()], LAZY)
    async with asyncio.timeout(5.0):
        await writer.idle()
    assert (store.written, performed) == (2, [TakeSample()])


async def test_any_other_record_that_somebody_relies_on_is_written_at_once() -> None:
    store = BrokenStore()
    store.is_full = False
    writer = RecordWriter(store, [].append)  # type: ignore[arg-type]
    writer.add([RecordEpoch(1)], [], Ahead.ORDER)
    assert store.tried.is_set()
    async with asyncio.timeout(5.0):
        await writer.idle()


async def test_what_fails_behind_a_record_stops_the_agent() -> None:
    store = BrokenStore()
    store.is_full = False

    def perform(effect: Effect) -> None:
        raise RuntimeError("a bug")

    writer = RecordWriter(store, perform)  # type: ignore[arg-type]
    running = asyncio.create_task(writer.run())
    await asyncio.sleep(0)
    writer.add([RecordEpoch(1)], [TakeSample()], Ahead.ORDER)
    async with asyncio.timeout(5.0):
        with pytest.raises(RuntimeError, match="a bug"):
            await running
