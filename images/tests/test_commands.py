"""//images:load and //images:push, with programs in place of kind, skopeo and crane that note what they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from image_files import FOLDER, NAMES
from timeslice_kind.clusters import RECORD, Cluster, Record

NAMED = {name: f"timeslice-{name.replace('_', '-')}" for name in NAMES}
PROGRAM = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >> "$LOG"
case "$1 $2" in
  "get clusters") [ -z "$NO_ENGINE" ] || { echo "ERROR: no engine" >&2; exit 1; }; echo dev; echo other ;;
  "load image-archive") [ -z "$FAILS" ] || { echo "ERROR: node is full" >&2; exit 1; } ;;
  "push "*) ls "$3" | sed 's/^/in the layout: /' >> "$LOG"; [ -z "$FAILS" ] || exit 1 ;;
  "copy "*) [ -z "$FAILS" ] || exit 1 ;;
esac
"""


class Machine:
    """A PATH with the programs that are wanted, and nothing in the caches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        (folder / "bin").mkdir()
        for needed in ("sh", "basename", "ls", "sed", "cat"):
            (folder / "bin" / needed).symlink_to(
                next(p for p in (Path("/usr/bin", needed), Path("/bin", needed)) if p.exists())
            )

    def install(self, name: str, folder: Path | None = None) -> Path:
        place = (folder or self.folder / "bin") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(PROGRAM)
        place.chmod(0o755)
        return place

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(FOLDER / script), *arguments],
            env={
                "PATH": str(self.folder / "bin"),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                "HOME": str(self.folder),
                "LOG": str(self.log),
                "NO_ENGINE": "",
                "FAILS": "",
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def archive(name: str) -> str:
    return str((FOLDER / f"{name}.tar").resolve())


def test_load_brings_all_images_to_the_cluster_and_says_how_far_it_is(machine: Machine) -> None:
    machine.install("kind")
    done = machine.run("load.py", "--name", "dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls == [
        "kind get clusters",
        *(f"kind load image-archive {archive(name)} --name dev" for name in sorted(NAMES)),
    ]
    for title in NAMED.values():
        assert f"loading localhost/{title}:" in done.stdout


@pytest.mark.parametrize("word", ["orchestrator", "timeslice-orchestrator"])
def test_load_takes_the_images_named_and_the_nodes(machine: Machine, word: str) -> None:
    machine.install("kind")
    done = machine.run("load.py", "--name", "dev", "--nodes", "dev-worker,dev-worker2", word)
    assert done.returncode == 0
    assert machine.calls[1:] == [
        f"kind load image-archive {archive('orchestrator')} --name dev --nodes dev-worker,dev-worker2"
    ]


def made_here(machine: Machine, record: Record) -> Path:
    """Write down a cluster as //tools/kind does; its own kind."""
    cluster = Cluster(machine.folder / ".cache/timeslice/kind/labs", record.name)
    kind = machine.install("kind", Path(cluster.kind).parent)
    (cluster.lab.folder / RECORD).write_text(json.dumps(asdict(record)))
    return kind


def test_load_takes_the_kind_that_made_the_cluster(machine: Machine) -> None:
    """It finds the cluster's engine and network, which one on PATH may not."""
    machine.install("kind")
    made_here(machine, Record("dev", "docker", "")).write_text(PROGRAM.replace("$(basename", "own $(basename"))
    assert machine.run("load.py", "--name", "dev", "gpu_mock").returncode == 0
    assert machine.calls == [f"own kind load image-archive {archive('gpu_mock')} --name dev"]


def test_load_into_a_cluster_that_was_made_here_and_is_not_up(machine: Machine) -> None:
    made_here(machine, Record("dev", "podman", ""))
    done = machine.run("load.py", "--name", "dev", "gpu_mock")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no cluster 'dev' here. Make it: ./bazelw run //tools/kind:up -- --name dev" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "env", "told"),
    [
        (["--name", "dve"], {}, "kind knows no cluster 'dve'; it knows: dev, other. Make it with: ./bazelw run"),
        (["--name", "dev", "orchestra"], {}, "no image orchestra; there are: client_example, gpu_mock,"),
        (["--name", "dev", "--kind", "/no/kind"], {}, "there is no program /no/kind"),
        (["--name", "dev"], {"NO_ENGINE": "1"}, "ERROR: no engine"),
        (["--name", "dev"], {"FAILS": "1"}, "ERROR: node is full"),
    ],
)
def test_load_says_what_is_wrong(machine: Machine, arguments: list[str], env: dict[str, str], told: str) -> None:
    machine.install("kind")
    done = machine.run("load.py", *arguments, **env)
    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_load_without_kind_says_how_to_get_it(machine: Machine) -> None:
    done = machine.run("load.py", "--name", "dev")
    assert done.returncode == 1
    assert "./bazelw run //tools/kind:up" in done.stderr


def test_push_with_skopeo_keeps_digests_and_prints_them(machine: Machine) -> None:
    machine.install("skopeo")
    machine.install("crane")
    done = machine.run("push.py", "registry.example:5000/team/", "--tag", "1.2", "gpu-mock")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls == [
        f"skopeo copy --preserve-digests oci-archive:{archive('gpu_mock')}"
        " docker://registry.example:5000/team/timeslice-gpu-mock:1.2"
    ]
    digest = (FOLDER / "gpu_mock.digest").read_text().strip()
    assert done.stdout.splitlines()[-1] == f"registry.example:5000/team/timeslice-gpu-mock@{digest}"


def test_push_with_crane_gives_it_a_layout(machine: Machine) -> None:
    machine.install("crane")
    done = machine.run("push.py", "registry.example", "--insecure", "gpu-mock")
    assert done.returncode == 0
    [call, *layout] = machine.calls
    assert call.startswith("crane push --insecure /")
    assert " registry.example/timeslice-gpu-mock:" in call
    assert {"in the layout: index.json", "in the layout: oci-layout"} <= set(layout)


def test_push_of_all_names_all(machine: Machine) -> None:
    machine.install("skopeo")
    done = machine.run("push.py", "registry.example")
    assert [line.partition("@")[0] for line in done.stdout.splitlines()[-len(NAMES) :]] == [
        f"registry.example/{NAMED[name]}" for name in sorted(NAMES)
    ]


@pytest.mark.parametrize(
    ("arguments", "env", "told"),
    [
        (["https://registry.example"], {}, "without a scheme"),
        (["registry.example/Team"], {}, "folders in lower case"),
        (["registry.example", "--tag", "latest"], {}, "a tag that moves"),
        (["registry.example"], {"FAILS": "1"}, "log in first (skopeo login registry.example)"),
    ],
)
def test_push_says_what_is_wrong(machine: Machine, arguments: list[str], env: dict[str, str], told: str) -> None:
    machine.install("skopeo")
    done = machine.run("push.py", *arguments, **env)
    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_push_without_a_tool_says_what_to_install(machine: Machine) -> None:
    done = machine.run("push.py", "registry.example", "gpu_mock")
    assert done.returncode == 1
    assert "apt-get install skopeo" in done.stderr
    assert archive("gpu_mock") in done.stderr


@pytest.mark.parametrize("script", ["load.py", "push.py"])
def test_help(machine: Machine, script: str) -> None:
    done = machine.run(script, "--help")
    assert done.returncode == 0
    assert f"./bazelw run //images:{script.removesuffix('.py')} -- " in done.stdout
