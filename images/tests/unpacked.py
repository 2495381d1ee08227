"""Programs of an image, run on this machine without a container engine: its files in a folder, and chroot."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from image_files import Image

READY_S = 120.0
"""Servers take half a second, and many times that on a machine where everything else runs too."""
CHROOT = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot"
ROOT = os.getuid() == 0
# In a chroot the root is no mount whose propagation could be changed, and unshare would fail over it.
IN_NAMESPACE = ["unshare", "--mount", "--propagation", "unchanged", *([] if ROOT else ["--map-root-user"])]
MOUNT = """
mount --make-rprivate / 2> /dev/null || true
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
shift
exec "$@"
"""


class Container:
    """The files of an image, with its entrypoint, environment and user; /proc and /dev are the machine's."""

    def __init__(self, image: Image, root: Path) -> None:
        self.root = root
        root.mkdir()
        self._config = image.config["config"]
        for path, info in sorted(image.tree.items(), key=lambda item: (item[1].islnk(), item[0])):
            place = root / path
            if info.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif info.issym():
                place.symlink_to(info.linkname)
                continue
            else:
                place.write_bytes(image.contents[path])
            place.chmod(info.mode)
            if ROOT:
                os.chown(place, info.uid, info.gid)

    def command(self, arguments: list[str], entrypoint: bool = True) -> list[str]:
        user = self._config["User"] or "0:0"
        as_user = [f"--userspec={user}"] if ROOT else []
        program = [*((self._config["Entrypoint"] or []) if entrypoint else []), *arguments]
        return [*IN_NAMESPACE, "sh", "-euc", MOUNT, "sh", str(self.root), CHROOT, *as_user, str(self.root), *program]

    def env(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**dict(pair.split("=", 1) for pair in self._config["Env"]), "HOME": "/", **more}

    def run(self, *arguments: str, entrypoint: bool = False, env: Mapping[str, str] | None = None) -> str:
        """What the program prints; fails the test if it fails."""
        done = subprocess.run(
            self.command(list(arguments), entrypoint),
            env=self.env(env or {}),
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def folder(self, name: str) -> str:
        """Make an empty folder that the image's user can write to, as a volume would be; its path in the container."""
        place = self.root / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if ROOT and self._config["User"]:
            os.chown(place, *map(int, self._config["User"].split(":")))
        return f"/{name}"

    def files(self) -> set[Path]:
        return set(self.root.rglob("*"))


class Server:
    """The image's entrypoint as a process, once it has written the line that says that it is ready."""

    def __init__(self, container: Container, arguments: list[str], ready: str, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            container.command(arguments), env=container.env(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._ready = ready
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.said: dict[str, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(b"")

    def __enter__(self) -> Self:
        seen = []
        while line := self._lines.get(timeout=READY_S):
            seen.append(line.decode())
            if self._ready in seen[-1]:
                self.said = json.loads(seen[-1])
                return self
        raise AssertionError("ended before it was ready:\n" + "".join(seen))

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self._process.terminate()
        return self._process.wait(timeout=READY_S)

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
