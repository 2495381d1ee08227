"""`timeslice up` on mock GPUs, as processes of their own, for tests."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

TIMEOUT_S = 60.0


def mock_environment(folder: Path, gpus: str = "2x32MiB") -> dict[str, str]:
    """The environment in which processes find the mock driver and keep everything below `folder`.

    Raises:
        RuntimeError: $GPU_MOCK_LIB_DIR does not name the mock's libraries.
    """
    libraries = os.environ.get("GPU_MOCK_LIB_DIR")
    if not libraries or not (Path(libraries) / "libcuda.so.1").exists():
        raise RuntimeError("GPU_MOCK_LIB_DIR must name the folder of the mock's libcuda.so.1 and libnvidia-ml.so.1")
    (folder / "mock").mkdir()
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(Path(libraries).absolute()),
        "TIMESLICE_GPU_MOCK": gpus,
        "TIMESLICE_GPU_MOCK_DIR": str(folder / "mock"),
        "TIMESLICE_RUNTIME_DIR": str(folder / "run"),
        "TIMESLICE_STATE_DIR": str(folder / "state"),
        "TIMESLICE_NODE": "here",
    }


class Running:
    """A command whose output is read as it comes."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.seen: list[str] = []
        self.errors: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._lines.put)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append)),
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str) -> str:
        """The first further line of stdout with this text in it."""
        while True:
            line = self._lines.get(timeout=TIMEOUT_S)
            assert line is not None, f"ended without {text!r}: {self.seen} {self.errors}"
            self.seen.append(line)
            if text in line:
                return line

    def say(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def interrupt(self) -> None:
        """As Ctrl-C does: to the whole process group of the terminal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def _read(self, stream, put) -> None:  # type: ignore[no-untyped-def]
        for line in stream:
            put(line.rstrip("\n"))
        put(None) if stream is self.process.stdout else None


def children_of(pid: int) -> dict[str, int]:
    """Pids of a process' children by the module that they run."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found[command[command.index(b"-m") + 1].decode()] = int(child)
    return found


def processes_of(environment: dict[str, str]) -> list[int]:
    """All processes that were started with this runtime folder, wherever they hang in the tree."""
    wanted = f"TIMESLICE_RUNTIME_DIR={environment['TIMESLICE_RUNTIME_DIR']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # Ended meanwhile, or somebody else's.
    return found
