"""What people type, and what they read when it does not work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timeslice_kind import debian
from timeslice_kind.clusters import Clusters, Sources, docker_answers, process_lives, this_process
from timeslice_kind.errors import KindError
from timeslice_kind.main import choose, take_name
from timeslice_kind.processes import run


@pytest.fixture
def clusters(tmp_path: Path) -> Clusters:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return Clusters(Sources(tmp_path, tmp_path, tmp_path), env)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["get", "pods", "-A"], (None, ["get", "pods", "-A"])),
        (["--name", "dev", "get", "pods"], ("dev", ["get", "pods"])),
        (["--name=dev", "--", "sh", "-c", "x"], ("dev", ["sh", "-c", "x"])),
        (["get", "--name", "x"], (None, ["get", "--name", "x"])),
    ],
)
def test_name_in_front_is_ours_and_the_rest_is_the_commands(
    argv: list[str], expected: tuple[str | None, list[str]]
) -> None:
    assert take_name(argv) == expected


def test_without_a_name_the_only_cluster_is_meant(clusters: Clusters) -> None:
    with pytest.raises(KindError, match="none"):
        choose(clusters, None)
    (clusters.labs / "dev").mkdir(parents=True)
    assert choose(clusters, None).name == "dev"
    (clusters.labs / "ci").mkdir()
    with pytest.raises(KindError, match="ci, dev"):
        choose(clusters, None)


def test_command_for_a_cluster_that_is_not_there_says_how_to_make_it(clusters: Clusters) -> None:
    with pytest.raises(KindError, match=r"tools/kind:up -- --name dev"):
        clusters.get("dev").command(["kubectl"])


def test_odd_names_are_refused(clusters: Clusters) -> None:
    for name in ("", "Dev", "../x", "-x", "a" * 60):
        with pytest.raises(KindError, match="no name"):
            clusters.get(name)


def test_deleting_what_is_not_there_is_no_error(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> None:
    clusters.down("dev")
    assert "no cluster dev" in capsys.readouterr().err


def test_owner_lives_as_long_as_the_process_with_its_start(clusters: Clusters) -> None:
    assert process_lives(this_process())
    assert not process_lives(f"{os.getpid()} 1")
    assert not process_lives("99999999 1")


def test_no_docker_program_is_no_engine(tmp_path: Path) -> None:
    assert not docker_answers({"PATH": str(tmp_path)})


@pytest.mark.parametrize(("script", "expected"), [("echo 28.0", True), ("echo no >&2; exit 1", False)])
def test_docker_engine_counts_when_it_answers(tmp_path: Path, script: str, expected: bool) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    assert docker_answers({"PATH": f"{tmp_path}:/usr/bin:/bin"}) is expected


def test_missing_programs_are_told_by_their_packages(tmp_path: Path) -> None:
    (tmp_path / "there").touch(mode=0o755)
    wanted = {"there": "one", "absent": "two", str(tmp_path / "there"): "three", "/nowhere/x": "four"}
    assert debian.missing(wanted, str(tmp_path)) == ["four", "two"]


def test_without_root_the_command_that_installs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(KindError, match="apt-get install --yes --no-install-recommends podman runc"):
        debian.need({"/nowhere/podman": "podman", "/nowhere/runc": "runc"}, {"PATH": str(tmp_path)})


def test_failed_command_tells_what_it_printed() -> None:
    with pytest.raises(KindError, match=r"(?s)status 3.*it broke"):
        run(["sh", "-c", "echo it broke >&2; exit 3"])
    with pytest.raises(KindError, match="no program 'no-such-program'"):
        run(["no-such-program"])
