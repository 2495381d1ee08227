"""The client's own tests, with its wheel installed: the oldest and the newest of what it needs, on other Pythons.

CLIENT_WITH is "floors" or "newest", CLIENT_WHEELS the folder of the wheels of that lock, CLIENT_PYTHON what to try it
on ("3.12"). Where that is not here, it is tried on the Python that runs this if CLIENT_ELSE is "own".
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from interpreters import Environment, clean_environment, find_python

PYTHON = os.environ["CLIENT_PYTHON"]
THIRD_PARTY = Path(os.environ["CLIENT_WHEELS"]).absolute()
OURS = Path("wheels").absolute()
TESTS = sorted(Path("components/client-py/tests").glob("test_*.py"))
TESTED_WITH = ["hypothesis", "pytest", "pytest-asyncio"]
SUITE_TIMEOUT_S = 600  # 30 to 40 s on a machine that does nothing else


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    python = find_python(PYTHON)
    if python is None and os.environ["CLIENT_ELSE"] == "own":
        python = Path(sys.executable)
    if python is None:
        pytest.skip(f"no python{PYTHON} on PATH or of pyenv: the client was not tried on it")
    environment = Environment(python, tmp_path_factory.mktemp("venv") / "client")
    environment.install([*exact_versions(), "timeslice-rl[cli]", *TESTED_WITH], [OURS, THIRD_PARTY])
    return environment


def exact_versions() -> list[str]:
    """"name==version" of what the client depends on: each lies there in one version only."""
    found = [re.match(r"(grpcio|grpcio_health_checking|protobuf)-([\d.]+)-", p.name) for p in THIRD_PARTY.iterdir()]
    return sorted({f"{m[1].replace('_', '-')}=={m[2]}" for m in found if m})


def requirements_of_the_wheel() -> dict[str, str]:
    """Floor by name, as the wheel says."""
    [wheel] = OURS.glob("timeslice_rl-*.whl")
    with ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    return dict(r.split(">=") for r in metadata.get_all("Requires-Dist", []) if "extra" not in r)


def test_versions_are_what_the_wheel_asks_for(environment: Environment) -> None:
    floors = requirements_of_the_wheel()
    assert list(floors) == ["grpcio", "grpcio-health-checking", "protobuf"]
    installed = {name: version for name, version in environment.versions().items() if name in floors}
    if os.environ["CLIENT_WITH"] == "floors":
        assert installed == floors
    else:
        assert all(parts(installed[name]) > parts(floor) for name, floor in floors.items()), (installed, floors)


def parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_client_passes_its_own_tests(environment: Environment) -> None:
    assert len(TESTS) > 5
    env = {**clean_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [
            *(str(environment.python), "-m", "pytest", "-c", "pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider"),
            *("-q", "--durations=5", *map(str, TESTS)),
        ],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=SUITE_TIMEOUT_S,
    )  # fmt: skip
    print(done.stdout[-3000:])
    assert done.returncode == 0
    assert re.search(r"\d{3} passed", done.stdout)
    home = subprocess.run(
        [str(environment.python), "-c", "import timeslice; print(timeslice.__file__)"],
        env=env, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    assert home.startswith(str(environment.folder)), "the tests saw another client than the wheel's"
