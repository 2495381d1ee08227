"""`pip install 'timeslice-rl[local]'` into an empty environment, and then what a newcomer does: demo, up, a job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreters import Environment, clean_environment

DISTRIBUTIONS = {"timeslice-rl", "timeslice-orchestrator", "timeslice-snapshot-agent", "timeslice-gpu-mock"}
COMMAND_TIMEOUT_S = 90

JOB = """
import os
from cuda.bindings import driver
from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload

def checked(result):
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if values else None

register_workload(None, "a", "pool", pids=[os.getpid()])
with TimeSliceOrchestratorClient(job_id="a", group_id="pool") as client:
    with client.on_accelerators(timeout_sec=30) as turn:
        checked(driver.cuInit(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(0))))))
        checked(driver.cuMemAlloc(20 << 20))
        print(turn.success, client.get_status().group.locking_job)
"""


def loop_of_the_readme() -> str:
    """The training loop that the README's first page has newcomers start with."""
    _, _, rest = Path("README.md").read_text().partition("```python\n")
    return rest.partition("```")[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    third_party = tmp_path_factory.mktemp("wheels")
    for wheel in Path("..").glob("pypi*/*/*.whl"):
        (third_party / wheel.name).symlink_to(wheel.absolute())
    environment = Environment(Path(sys.executable), tmp_path_factory.mktemp("venv") / "local")
    environment.install(["timeslice-rl[local]"], [Path("wheels").absolute(), third_party])
    return environment


@pytest.fixture
def settings() -> Iterator[dict[str, str]]:
    """Everything that the commands leave lies in a folder of its own, with a path that is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
    yield {
        **clean_environment(),
        "HOME": str(folder),
        "TIMESLICE_RUNTIME_DIR": str(folder / "run"),
        "TIMESLICE_STATE_DIR": str(folder / "state"),
        "TIMESLICE_GPU_MOCK_DIR": str(folder / "mock"),
    }
    shutil.rmtree(folder)


def test_all_distributions_come_in_one_version(environment: Environment, settings: dict[str, str]) -> None:
    versions = {name: version for name, version in environment.versions().items() if name in DISTRIBUTIONS}
    assert set(versions) == DISTRIBUTIONS
    [version] = set(versions.values())
    assert run(environment, settings, "timeslice", "--version").startswith(f"timeslice {version} ")
    for command in ("timeslice-orchestrator", "timeslice-snapshot-agent", "gpu-mock"):
        assert run(environment, settings, command, "--help")


def test_demo(environment: Environment, settings: dict[str, str]) -> None:
    shown = run(environment, settings, "timeslice", "demo", "--quick")
    assert shown.count("weights equal") == 2, shown
    assert "device time without a lease: 0 s" in shown, shown


def test_up_and_a_job(environment: Environment, settings: dict[str, str], tmp_path: Path) -> None:
    with servers(environment, settings, "--mock", "2x64MiB", "--group", "pool=0", "--group", "rest=1"):
        groups = json.loads(run(environment, settings, "timeslice", "status", "--json"))["groups"]
        assert {group["group"] for group in groups} == {"pool", "rest"}
        job = tmp_path / "job.py"
        job.write_text(JOB)
        done = run(environment, settings, "gpu-mock", "run", "--", str(environment.python), str(job))
        assert done.split() == ["True", "a"]
    assert os.listdir(settings["TIMESLICE_STATE_DIR"])
    assert not Path(settings["TIMESLICE_RUNTIME_DIR"]).exists()


def test_two_jobs_with_the_loop_of_the_readme(
    environment: Environment, settings: dict[str, str], tmp_path: Path
) -> None:
    loop = tmp_path / "loop.py"
    loop.write_text(loop_of_the_readme())
    with servers(environment, settings, "--mock", "1x80GiB"):
        jobs = [
            subprocess.Popen([environment.python, loop, job], env=settings, stdout=subprocess.PIPE, text=True)
            for job in "ab"
        ]
        try:
            shown = [job.communicate(timeout=COMMAND_TIMEOUT_S)[0] for job in jobs]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    assert [job.returncode for job in jobs] == [0, 0]
    waits = [re.findall(rf"{job}: step \d, waited (\d+) ms", lines) for job, lines in zip("ab", shown, strict=True)]
    assert [len(of_job) for of_job in waits] == [3, 3], shown
    # Both want the group for a second at a time, so whoever comes later waits for the other at least once.
    assert max(int(wait) for of_job in waits for wait in of_job) > 0


@contextlib.contextmanager
def servers(environment: Environment, settings: dict[str, str], *arguments: str) -> Iterator[None]:
    """`timeslice up` with these arguments, stopped by Ctrl-C in the end."""
    up = subprocess.Popen(
        [environment.command("timeslice"), "up", *arguments],
        env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    give_up = threading.Timer(COMMAND_TIMEOUT_S, up.kill)
    give_up.start()
    try:
        assert up.stdout is not None
        seen = []
        for line in up.stdout:
            seen.append(line)
            if "Ctrl-C stops it" in line:
                break
        else:
            pytest.fail("`timeslice up` ended: " + "".join(seen))
        yield
        up.send_signal(signal.SIGINT)
        assert up.wait(COMMAND_TIMEOUT_S) == 130
    finally:
        give_up.cancel()
        up.kill()
        up.communicate()


def run(environment: Environment, settings: dict[str, str], command: str, *arguments: str) -> str:
    done = subprocess.run(
        [environment.command(command), *arguments],
        env=settings, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} {arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout
