"""`--mock 2x80GiB`: a command becomes itself, on mock GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from timeslice._gpu_mock import mock_folder
from timeslice.cli.errors import BAD_INPUT, CommandError


def become_on_mock_gpus(gpus: str, arguments: Sequence[str], env: Mapping[str, str], notes: TextIO) -> None:
    """Make the mock GPUs, unless there are some, and start `timeslice ARGUMENTS` anew with them in sight.

    Returns only where this process sees them already: the dynamic loader looks for libraries where it was told to when
    the process began, so that a new beginning is needed.

    Raises:
        CommandError: the mock is not installed, or does not know what `gpus` means.
    """
    folder = mock_folder(env)
    if folder is None:
        raise CommandError("--mock needs the GPU mock, which is not installed; run: pip install 'timeslice-rl[local]'")
    command = str(folder / "gpu-mock")
    seen = {os.path.realpath(path) for path in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path}
    if os.path.dirname(os.path.realpath(command)) in seen:  # what `gpu-mock run` puts there, links resolved
        return
    bare = {name: value for name, value in env.items() if name != "TIMESLICE_GPU_MOCK"}  # Else `show` makes some.
    if _run([command, "show"], bare).returncode == 0:
        print("using the mock GPUs that are there already; `gpu-mock reset --all` removes them", file=notes)
    elif (made := _run([command, "create", gpus], bare)).returncode:
        raise CommandError(f"--mock {gpus}: {made.stderr.strip()}; for example --mock 2x80GiB", BAD_INPUT)
    print("jobs see the mock GPUs when started with: gpu-mock run -- COMMAND", file=notes, flush=True)
    os.execve(command, [command, "run", "--", sys.executable, "-m", "timeslice.cli", *arguments], bare)


def _run(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    except OSError as err:
        raise CommandError(f"the GPU mock cannot be used: {command[0]}: {err.strerror}") from err
