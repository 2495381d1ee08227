"""What was built once is taken again, and nothing half-made ever is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from timeslice_kind.cache import Cache, cache_folder, content_key, locked, remove_tree


def test_entry_is_made_once(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "program").write_text("x")

    cache = Cache(tmp_path)
    first = cache.get("kind", "0123", make)
    assert cache.get("kind", "0123", make) == first == tmp_path / "kind-0123"
    assert (first / "program").read_text() == "x"
    assert len(made) == 1
    assert made[0] != first, "nobody may see an entry that is being made"


def test_failed_build_leaves_no_entry_and_the_next_one_starts_from_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get("kind", "0123", fail)
    assert not cache.path("kind", "0123").exists()
    entry = cache.get("kind", "0123", lambda folder: (folder / "whole").touch())
    assert [path.name for path in entry.iterdir()] == ["whole"]


BUILDER = """
import os, sys, time
from pathlib import Path
from timeslice_kind.cache import Cache

def make(folder):
    (folder / "half").touch()
    print("building", flush=True)
    sys.stdin.read()
    (folder / "half").rename(folder / "whole")

entry = Cache(Path(sys.argv[1])).get("kind", "0123", make)
print("entry", *(path.name for path in entry.iterdir()), flush=True)
"""


def builder(folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BUILDER), str(folder)],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_killed_build_leaves_no_entry_and_no_lock(tmp_path: Path) -> None:
    with builder(tmp_path) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "building\n"
        killed.send_signal(signal.SIGKILL)
    assert not Cache(tmp_path).path("kind", "0123").exists()
    with builder(tmp_path) as second:
        out, _ = second.communicate("", timeout=30)
    assert out == "building\nentry whole\n"


def test_second_build_waits_for_the_first_and_takes_what_it_made(tmp_path: Path) -> None:
    with builder(tmp_path) as first, builder(tmp_path) as second:
        streams = (first.stdout, second.stdout, first.stderr, second.stderr)
        assert all(streams)
        one, other = first, second
        # Whoever has the lock is building; the other one says that it waits.
        os.set_blocking(first.stdout.fileno(), False)  # type: ignore[union-attr]
        os.set_blocking(second.stdout.fileno(), False)  # type: ignore[union-attr]
        deadline = time.monotonic() + 30
        while True:
            if first.stdout.readline() == "building\n":  # type: ignore[union-attr]
                break
            if second.stdout.readline() == "building\n":  # type: ignore[union-attr]
                one, other = second, first
                break
            assert time.monotonic() < deadline
        assert "waiting for another process" in other.stderr.readline()  # type: ignore[union-attr]
        for process in (one, other):
            os.set_blocking(process.stdout.fileno(), True)  # type: ignore[union-attr]
        built, _ = one.communicate("", timeout=30)
        taken, _ = other.communicate("", timeout=30)
    assert (built, taken) == ("entry whole\n", "entry whole\n")


def test_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "below" / "lock"):
            pass


def test_key_changes_with_names_contents_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "go"
    (folder / "kind").mkdir(parents=True)
    file = folder / "kind" / "go.mod"
    file.write_text("module x\n")
    keys = [content_key(folder)]
    file.write_text("module y\n")
    keys.append(content_key(folder))
    file.chmod(0o755)
    keys.append(content_key(folder))
    file.rename(folder / "kind" / "go.sum")
    keys.append(content_key(folder))
    keys.append(content_key(folder, "tags"))
    assert len(set(keys)) == len(keys)
    assert content_key("ab", "c") != content_key("a", "bc")


def test_key_is_the_same_in_another_folder_and_through_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "go.mod").write_text("module x\n")
    (tmp_path / "b" / "go.mod").symlink_to(tmp_path / "a" / "go.mod")
    assert content_key(tmp_path / "a") == content_key(tmp_path / "b")


def test_prune_removes_others_and_what_killed_builds_left_but_no_clusters(tmp_path: Path) -> None:
    for name in ("kind-new", "kind-old", ".part-kind", "labs"):
        (tmp_path / name).mkdir()
    gone = Cache(tmp_path).remove_others({tmp_path / "kind-new"})
    assert sorted(path.name for path in gone) == [".part-kind", "kind-old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kind-new", "labs"]


def test_read_only_trees_can_be_removed(tmp_path: Path) -> None:
    tree = tmp_path / "module"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "go").touch(mode=0o400)
    (tree / "bin").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()


def test_folder_follows_the_environment() -> None:
    assert cache_folder({"HOME": "/home/ann"}) == Path("/home/ann/.cache/timeslice/kind")
    assert cache_folder({"HOME": "/home/ann", "XDG_CACHE_HOME": "/big"}) == Path("/big/timeslice/kind")
