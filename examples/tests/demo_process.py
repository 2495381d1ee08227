"""The demo as a user starts it, as a process of the test."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 240.0
"""Far above the half minute that a quick run takes, for a machine that runs other tests besides."""


class DemoProcess:
    """`python -m timeslice_demo ARGUMENTS`, with warnings as errors in it and in all that it starts."""

    def __init__(self, *arguments: str, libraries: str | None = None) -> None:
        libraries = libraries or os.environ["GPU_MOCK_LIB_DIR"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONWARNINGS": "error",
            "GPU_MOCK_LIB_DIR": str(Path(libraries).absolute()),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "timeslice_demo", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.output = ""
        self.errors = ""

    def read_until(self, words: str) -> None:
        """Take in lines of output until one has the words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if words in line:
                return
        status = self.finish()
        raise AssertionError(f"the demo ended ({status}) before it said {words!r}:\n{self.output}{self.errors}")

    def finish(self) -> int:
        """Wait for the end; the exit status. What it wrote is in `output` and `errors`."""
        output, self.errors = self.process.communicate(timeout=LIMIT_S)
        self.output += output
        return self.process.returncode

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def descendants(self) -> set[tuple[int, int]]:
        """(pid, start time) of every process below the demo."""
        parents: dict[int, list[tuple[int, int]]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (stat := _stat(int(entry.name))):
                parents.setdefault(stat[0], []).append((int(entry.name), stat[1]))
        found: set[tuple[int, int]] = set()
        todo = [self.process.pid]
        while todo:
            for child in parents.get(todo.pop(), []):
                found.add(child)
                todo.append(child[0])
        return found

    def files(self) -> list[Path]:
        """Folders of this run that are there now."""
        places = {Path("/dev/shm"), Path("/tmp"), Path(tempfile.gettempdir())}
        return [path for place in places for path in place.glob(f"timeslice-demo-{self.process.pid}-*")]


def living(processes: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the processes that exist, zombies included."""
    return {(pid, start) for pid, start in processes if (stat := _stat(pid)) and stat[1] == start}


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time; None: there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1]), int(fields[19])
