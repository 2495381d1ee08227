"""What only the SQLite store promises: about its file, its lock, and the power that may fail."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.effects import Record
from orchestrator.core.types import GroupId, GroupRecord, RecordId
from orchestrator.store.interface import StoreRefused
from orchestrator.store.sqlite import FILE_NAME, SCHEMA_VERSION, SqliteStore

RECORD = GroupRecord(group=GroupId("g"), version=RecordId(1))


async def make(folder: Path) -> Path:
    store = await SqliteStore.open(folder)
    await store.write([Record(RECORD)])
    await store.close()
    return folder / FILE_NAME


async def refusal(folder: Path) -> str:
    with pytest.raises(StoreRefused) as refused:
        await SqliteStore.open(folder)
    text = str(refused.value)
    assert "\n" not in text
    return text


async def test_a_store_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = await make(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    assert "newer" in await refusal(tmp_path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"what a shell redirection left here\n" * 100)
    before = path.read_bytes()
    assert "damaged" in await refusal(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("page", [1, 30])
async def test_a_torn_page_is_noticed_at_the_start(tmp_path: Path, page: int) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.write([Record(GroupRecord(group=GroupId(f"g{n}"), version=RecordId(1))) for n in range(5000)])
    await store.close()
    path = tmp_path / FILE_NAME
    torn = bytearray(path.read_bytes())
    torn[page * 4096:page * 4096 + 4096] = os.urandom(4096)
    path.write_bytes(torn)
    assert "damaged" in await refusal(tmp_path)
    assert path.read_bytes() == bytes(torn)


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = path.read_bytes()
    assert "not a store" in await refusal(tmp_path)
    assert path.read_bytes() == before


async def test_a_record_that_cannot_be_understood_is_refused(tmp_path: Path) -> None:
    path = await make(tmp_path)
    with sqlite3.connect(path) as connection:
        connection.execute("""UPDATE groups SET record = '{"group": 5}'""")
    connection.close()
    store = await SqliteStore.open(tmp_path)
    with pytest.raises(StoreRefused, match="damaged"):
        await store.load()
    await store.close()


async def test_a_second_orchestrator_is_kept_out_until_the_first_has_closed(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    assert "in use by another orchestrator" in await refusal(tmp_path)
    await store.close()
    await (await SqliteStore.open(tmp_path)).close()


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "choose another --state-dir" in await refusal(tmp_path / "file" / "state")


WRITER = """
import asyncio, sys
from pathlib import Path
from orchestrator.core.effects import Record
from orchestrator.core.types import GroupId, GroupRecord, RecordId
from orchestrator.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    for n in range(1, 1_000_000):
        await store.write([Record(GroupRecord(group=GroupId("g"), version=RecordId(n)))])
        print(n, flush=True)

asyncio.run(main())
"""


def killed_writer(folder: Path, acknowledged: int) -> int:
    """Let a process write until that many writes are acknowledged, kill it; the last number that it acknowledged."""
    last = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            last = int(line)
            if last == acknowledged:
                writer.kill()
    return last


@pytest.mark.parametrize("acknowledged", [1, 40])
async def test_what_was_acknowledged_before_a_kill_is_there_afterwards(tmp_path: Path, acknowledged: int) -> None:
    last = killed_writer(tmp_path, acknowledged)
    store = await SqliteStore.open(tmp_path)
    found = await store.read(GroupId("g"))
    await store.close()
    assert found is not None
    assert found.version >= last >= acknowledged
