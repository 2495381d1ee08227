"""The driver on the node: libraries, devices and the CDI file, as a GPU operator's driver container has them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_mock_kubernetes import cdi, mock
from gpu_mock_kubernetes.config import NodeFolders, Recipe
from gpu_mock_kubernetes.files import link_whole, write_whole
from gpu_mock_kubernetes.logs import note

FILES = ("libcuda.so.1", "libnvidia-ml.so.1", "gpu-mock", "kernels.ptx")
VERSIONS = "versions"
VERSIONS_KEPT = 2
"""The current one, and the one before: a container that is being created may have just looked its path up."""
LIVES = 1
"""In the mock's file `locks` each process with a device holds one byte from this one on (STATE.md)."""

log = logging.getLogger("gpu_mock_kubernetes.installer")


class DevicesInUse(Exception):
    """Processes hold devices that would have to go. Nothing was changed."""


def install(source: Path, recipe: Recipe, folders: NodeFolders) -> str:
    """Make the node have this driver and these devices; return the version of its files.

    Devices of the same recipe stay, with all that is on them, and running processes keep the files they have open.
    May be cut off at any point and called again, also by two at once.

    Raises:
        DevicesInUse: the node has other devices, and processes use them: drain the node first.
        MockError: the devices cannot be made; the text is gpu-mock's.
        OSError: a folder cannot be written, or a file of the driver is missing in `source`.
    """
    folders.driver.mkdir(parents=True, exist_ok=True)
    with _only_one(folders.driver):
        version = _version_of(source)
        wanted = {**asdict(recipe), "version": version}
        offered = _offered(folders.offer)
        _copy(source, version, folders.driver)
        program = folders.driver / VERSIONS / version / "gpu-mock"
        if not _same_devices(offered, recipe, folders.state, program):
            _make_devices(recipe, folders, program)
        link_whole(folders.libraries, f"{VERSIONS}/{version}")
        node = mock.look(folders.libraries / "gpu-mock", folders.state)
        cdi.write(node.devices, folders)
        if offered != wanted or not folders.offer.exists():
            write_whole(folders.offer, json.dumps(wanted) + "\n")
        _forget_old_versions(folders.driver, version)
    note(log, "driver is installed", version=version, gpus=recipe.gpus, uuids=[one.uuid for one in node.devices])
    return version


def uninstall(folders: NodeFolders, patience_s: float) -> None:
    """Take everything away again; the two folders themselves stay, empty, since containers may have them mounted.

    Waits up to `patience_s` for processes that still hold a device: those of pods that are deleted at the same time.

    Raises:
        DevicesInUse: processes hold devices; nothing was changed.
    """
    folders.driver.mkdir(parents=True, exist_ok=True)
    with _only_one(folders.driver), _nobody_on(folders.state, patience_s):
        (folders.cdi / cdi.FILE_NAME).unlink(missing_ok=True)
        _empty(folders.state, first=folders.offer)
    _empty(folders.driver, first=folders.libraries)
    note(log, "driver is uninstalled")


def _version_of(source: Path) -> str:
    whole = hashlib.sha256()
    for name in FILES:
        whole.update(hashlib.sha256((source / name).read_bytes()).digest())
    return whole.hexdigest()[:12]


def _copy(source: Path, version: str, driver: Path) -> None:
    place = driver / VERSIONS / version
    if place.exists():
        return
    draft = place.with_name(f".{version}.draft")
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(parents=True)
    draft.chmod(0o755)
    for name in FILES:
        shutil.copyfile(source / name, draft / name)
        (draft / name).chmod(0o644 if name.endswith(".ptx") else 0o755)
    draft.rename(place)


def _forget_old_versions(driver: Path, current: str) -> None:
    others = sorted(
        (one for one in (driver / VERSIONS).iterdir() if one.name != current), key=lambda one: one.stat().st_mtime_ns
    )
    for old in others[: max(0, len(others) - (VERSIONS_KEPT - 1))]:
        shutil.rmtree(old)


def _offered(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _same_devices(offered: dict[str, Any] | None, recipe: Recipe, state: Path, program: Path) -> bool:
    """Whether the node has the devices of the recipe, in a state that the new version of the mock understands."""
    if offered is None or any(offered.get(name) != value for name, value in asdict(recipe).items()):
        return False
    try:
        mock.look(program, state)
    except mock.MockError:
        return False
    return True


def _make_devices(recipe: Recipe, folders: NodeFolders, program: Path) -> None:
    with _nobody_on(folders.state, patience_s=0.0):
        _empty(folders.state, first=folders.offer)
        folders.state.mkdir(parents=True, exist_ok=True)
        # Pods reach it by the folder's mount and open what is there; only root makes and removes files.
        folders.state.chmod(0o755)
        mock.run(
            program, folders.state, "create", recipe.gpus, "--name", recipe.name, f"--prefault={recipe.prefault}"
        )  # fmt: skip


def _empty(folder: Path, first: Path) -> None:
    """Remove what is in a folder, and not the folder, which may be a mount point here or elsewhere."""
    first.unlink(missing_ok=True)
    if not folder.exists():
        return
    for one in folder.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()


@contextlib.contextmanager
def _only_one(driver: Path) -> Iterator[None]:
    """One installer at a time on a node."""
    fd = os.open(driver, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _nobody_on(state: Path, patience_s: float) -> Iterator[None]:
    """While this lasts no process has a device, and none can take one.

    Raises:
        DevicesInUse: some had, for all of `patience_s`.
    """
    try:
        fd = os.open(state / "locks", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        _take_all_lives(fd, state, patience_s)
        yield
    finally:
        os.close(fd)


def _take_all_lives(fd: int, state: Path, patience_s: float) -> None:
    class Late(Exception):
        pass

    def too_late(number: int, frame: FrameType | None) -> None:
        raise Late

    in_use = DevicesInUse(f"processes use the mock GPUs in {state}; nothing was changed. Delete their pods first.")
    if patience_s <= 0:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, LIVES)
        except (BlockingIOError, PermissionError):
            raise in_use from None
        return
    before = signal.signal(signal.SIGALRM, too_late)  # a record lock waits in the kernel, and has no time limit
    try:
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        fcntl.lockf(fd, fcntl.LOCK_EX, 0, LIVES)
    except Late:
        raise in_use from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
