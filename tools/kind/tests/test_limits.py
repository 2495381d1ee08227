"""A cluster is not begun on a machine that has no room for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from timeslice_kind.errors import KindError
from timeslice_kind.limits import PER_NODE, check_inotify


def machine(proc: Path, limit: int, used: int) -> Path:
    setting = proc / "sys/fs/inotify/max_user_instances"
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{limit}\n")
    descriptors = proc / "7/fd"
    descriptors.mkdir(parents=True)
    (descriptors / "0").symlink_to("/dev/null")
    for number in range(1, used + 1):
        (descriptors / str(number)).symlink_to("anon_inode:inotify")
    return proc


def test_room_for_three_nodes(tmp_path: Path) -> None:
    check_inotify(3, machine(tmp_path, 128, 128 - 3 * PER_NODE))


def test_no_room_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KindError, match=r"69 of 128 inotify instances .*`sysctl -w fs.inotify.max_user_instances=512"):
        check_inotify(3, machine(tmp_path, 128, 69))
