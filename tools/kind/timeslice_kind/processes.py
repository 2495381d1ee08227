"""Child processes whose failures tell what they printed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from timeslice_kind.errors import KindError

SHOWN = 3000
"""Characters of a failed command's output that an error shows: its end, where the reason stands."""


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
) -> str:
    """Run to the end and return stdout.

    Args:
        command: program and arguments.
        env: the whole environment; None: ours.
        cwd: folder to run in.
        log: a file that gets all the output as well.
    Raises:
        KindError: not found, or ended with another status than 0.
    """
    try:
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise KindError(f"there is no program {command[0]!r}") from None
    if log is not None:
        with log.open("a") as out:
            out.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        where = f" (all of it: {log})" if log else ""
        said = (done.stdout + done.stderr).strip()[-SHOWN:]
        raise KindError(f"{' '.join(command[:6])} failed with status {done.returncode}{where}:\n{said}")
    return done.stdout
