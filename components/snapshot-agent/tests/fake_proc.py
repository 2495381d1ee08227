"""A folder that looks like /proc to whoever asks for the cgroups of processes; all else of them is real."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class FakeProc:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def put(self, pid: int, cgroup: Iterable[str], inner: int | None = None) -> None:
        """From now on the process is in these cgroups, as lines of /proc/PID/cgroup; `inner`: its pid in its own
        namespace, if that is another one."""
        here = self.folder / str(pid)
        if not here.exists():
            here.mkdir()
            (here / "stat").symlink_to(f"/proc/{pid}/stat")
            status = Path(f"/proc/{pid}/status").read_text()
            (here / "status").write_text(status + (f"NSpid:\t{pid}\t{inner}\n" if inner is not None else ""))
        (here / "cgroup").write_text("".join(f"{line}\n" for line in cgroup))

    def hide(self, pid: int) -> None:
        """Its cgroups cannot be read any more."""
        (self.folder / str(pid) / "cgroup").unlink()
