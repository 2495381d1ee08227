"""Changes in a folder are heard of, none between a look and a wait is missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpu_mock_kubernetes.folder_watch import Change, FolderGone, FolderWatch

DEADLINE_S = 20.0


async def heard(watch: FolderWatch) -> dict[str, Change]:
    async with asyncio.timeout(DEADLINE_S):
        return await watch.changes()


async def test_what_happened_before_the_wait_is_heard_of(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        (tmp_path / "made").touch()
        (tmp_path / "moved").symlink_to("x")
        (tmp_path / "moved").rename(tmp_path / "here")
        (tmp_path / "made").unlink()
        changes = await heard(watch)
    assert changes["made"] & Change.CREATED
    assert changes["made"] & Change.DELETED
    assert changes["moved"] & Change.MOVED_AWAY
    assert changes["here"] == Change.MOVED_HERE


async def test_a_waiter_is_woken(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        waiting = asyncio.create_task(heard(watch))
        await asyncio.sleep(0)  # it waits now
        assert not waiting.done()
        (tmp_path / "made").touch()
        assert "made" in await waiting


async def test_a_touch_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with FolderWatch(tmp_path) as watch:
        (tmp_path / "state").touch()
        assert await heard(watch) == {"state": Change.ATTRIBUTES}


async def test_a_cancelled_wait_loses_nothing(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        waiting = asyncio.create_task(watch.changes())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        (tmp_path / "made").touch()
        assert "made" in await heard(watch)


async def test_what_is_forgotten_is_not_heard_of(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        (tmp_path / "before").touch()
        watch.forget()
        (tmp_path / "after").touch()
        assert list(await heard(watch)) == ["after"]


async def test_a_folder_that_goes_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with FolderWatch(tmp_path / "folder") as watch:
        (tmp_path / "folder").rmdir()
        with pytest.raises(FolderGone):
            await heard(watch)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot watch"):
        FolderWatch(tmp_path / "none")
