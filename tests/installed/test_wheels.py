"""The wheels: the same bytes wherever and whenever they are built, each file in one of them, on old machines too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

WHEELS = {p.name.split("-")[0]: p for p in sorted(Path("wheels").absolute().glob("*.whl"))}
ELSEWHERE = Path("tests/installed/wheels_elsewhere").absolute()
TOOL = Path("tools/wheel/pep517_wheel.py").absolute()
RECIPES = {
    "timeslice_gpu_mock": "components/gpu-mock",
    "timeslice_orchestrator": "components/orchestrator",
    "timeslice_rl": "components/client-py",
    "timeslice_snapshot_agent": "components/snapshot-agent",
}
PACKAGES = {
    "timeslice_gpu_mock": {"timeslice_gpu_mock"},
    "timeslice_orchestrator": {"orchestrator"},
    # The generated code is in one wheel only: two copies in a process are a TypeError.
    "timeslice_rl": {"snapshot_agent", "timeslice", "timeslice_demo", "timeslice_orchestrator"},
    "timeslice_snapshot_agent": {"snapshot_agent_server"},
}

each_wheel = pytest.mark.parametrize("name", list(RECIPES))


def files(name: str) -> list[str]:
    with ZipFile(WHEELS[name]) as archive:
        return archive.namelist()


def metadata(name: str) -> Message:
    with ZipFile(WHEELS[name]) as archive:
        [path] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(path).decode())


def test_there_are_these_four() -> None:
    assert set(WHEELS) == set(RECIPES)


@each_wheel
def test_built_in_another_folder_locale_and_time_zone_it_is_the_same(name: str) -> None:
    """Everything once more, from the C compiler and protoc on; see `built_elsewhere` in tools/wheel/defs.bzl."""
    assert (ELSEWHERE / WHEELS[name].name).read_bytes() == WHEELS[name].read_bytes()


@each_wheel
def test_packed_in_another_year_by_another_user_it_is_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    env = {
        **os.environ,
        "LD_PRELOAD": os.environ["LIBFAKETIME"],
        "FAKETIME": "+1000d",
        "TMPDIR": str(tmp_path / "tmp"),
        "HOME": str(tmp_path),
        "USER": "somebody",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "7",
    }
    out = tmp_path / WHEELS[name].name
    recipe = f"{RECIPES[name]}/wheel.recipe.json"
    now = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], env=env, capture_output=True, text=True, check=True
    )
    assert float(now.stdout) > time.time() + 900 * 86400, "the clock was not moved"
    subprocess.run([sys.executable, str(TOOL), "--runfiles", recipe, str(out)], env=env, check=True, umask=0o077)
    assert out.read_bytes() == WHEELS[name].read_bytes()


def test_no_file_is_in_two_wheels() -> None:
    everything = [file for name in WHEELS for file in files(name)]
    assert len(everything) == len(set(everything))


@each_wheel
def test_packages_are_these(name: str) -> None:
    assert {f.split("/")[0] for f in files(name) if ".dist-info/" not in f} == PACKAGES[name]


@each_wheel
def test_licence_is_in_it_and_no_test_is(name: str) -> None:
    assert {"LICENSE", "NOTICE"} <= {Path(f).name for f in files(name)}
    assert not [f for f in files(name) if re.search(r"(^|/)(tests?/|test_|conftest)", f)]


def test_one_version_everywhere() -> None:
    [version] = {metadata(name)["Version"] for name in WHEELS}
    assert version != "0+unreleased"
    ours = [r for name in WHEELS for r in metadata(name).get_all("Requires-Dist", []) if r.startswith("timeslice")]
    assert len(ours) == 5
    assert all(re.fullmatch(rf"timeslice-[a-z-]+=={re.escape(version)}(; extra == .local.)?", r) for r in ours), ours


def test_mock_claims_no_newer_a_platform_than_it_needs() -> None:
    wheel = WHEELS["timeslice_gpu_mock"]
    [claimed] = re.findall(r"-py3-none-(\w+)\.whl", wheel.name)
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True
    )
    words = " ".join(shown.stdout.split())
    assert f'consistent with the following platform tag: "{claimed}"' in words
    assert f'This constrains the platform tag to "{claimed}"' in words


def test_mocks_command_can_be_run() -> None:
    with ZipFile(WHEELS["timeslice_gpu_mock"]) as archive:
        assert archive.getinfo("timeslice_gpu_mock/lib/gpu-mock").external_attr >> 16 & 0o111 == 0o111
