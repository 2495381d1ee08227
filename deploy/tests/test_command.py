"""Which kubectl and which cluster the commands take, and what they say when there is none, with a kubectl of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from timeslice_deploy import kubectl
from timeslice_deploy.command import main
from timeslice_deploy.errors import BadUsage

FAKE = """#!/bin/sh
case "$*" in
  "config get-contexts -o name") printf '%s\\n' prod staging ;;
  *" version -o json"*) {version} ;;
  *" get "*) echo '{{"items": []}}' ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


def program(path: Path, text: str = "#!/bin/sh\nexit 1\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def server(answer: dict[str, object]) -> str:
    return f"echo '{json.dumps(answer)}'"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Without any kubectl."""
    (tmp_path / "empty").mkdir()
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "empty")}


@pytest.fixture
def fake(tmp_path: Path, env: dict[str, str]) -> dict[str, str]:
    """With a kubectl on PATH that knows two contexts of Kubernetes 1.37."""
    program(tmp_path / "path/kubectl", FAKE.format(version=server({"serverVersion": {"gitVersion": "v1.37.1"}})))
    return env | {"PATH": f"{tmp_path}/path:/usr/bin:/bin"}


def test_kubectl_is_the_given_one_then_the_clusters_then_that_on_path_then_the_built_one(
    tmp_path: Path, env: dict[str, str]
) -> None:
    with pytest.raises(BadUsage, match="no kubectl on PATH: install it"):
        kubectl.find(env, None, "kind-dev")
    cache = tmp_path / ".cache/timeslice/kind"
    built = program(cache / "kubernetes-1/bin/kubectl")
    assert kubectl.find(env, None, "kind-dev") == built
    on_path = program(tmp_path / "path/kubectl")
    env["PATH"] = str(tmp_path / "path")
    assert kubectl.find(env, None, "kind-dev") == on_path
    of_cluster = program(cache / "labs/dev/bin/kubectl")
    assert kubectl.find(env, None, "kind-dev") == of_cluster
    assert kubectl.find(env, None, "kind-other") == on_path
    assert kubectl.find(env, None, None) == on_path
    named = program(tmp_path / "mine")
    assert kubectl.find(env | {"KUBECTL": named}, None, "kind-dev") == named
    assert kubectl.find(env | {"KUBECTL": on_path}, named, "kind-dev") == named
    with pytest.raises(BadUsage, match="'nowhere/kubectl' is no program"):
        kubectl.find(env, "nowhere/kubectl", None)


@pytest.mark.parametrize("command", ["status", "diff --overlay production", "delete --overlay production"])
def test_a_cluster_must_be_named(
    command: str, tmp_path: Path, fake: dict[str, str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async def built(*_: object) -> list[object]:
        return []

    monkeypatch.setattr("timeslice_deploy.manifests.build", built)
    program(tmp_path / ".cache/timeslice/kind/labs/dev/bin/kubectl")
    assert main(command.split(), fake) == 2
    said = capsys.readouterr().err
    assert "which cluster? Name its context" in said
    assert [line.split()[-1] for line in said.splitlines()[1:]] == ["kind-dev", "prod", "staging"]
    assert main([*command.split(), "--context", "production"], fake) == 2
    assert "there is no context 'production'" in capsys.readouterr().err


def test_unknown_overlay_names_those_that_there_are(fake: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "--overlay", "prod", "--context", "prod"], fake) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("production", "mock-gpu", "single-node")), said


@pytest.mark.parametrize("timeout", ["0", "-1"])
def test_timeout_must_be_above_0(timeout: str, fake: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "--overlay", "production", "--timeout", timeout], fake) == 2
    assert "--timeout must be above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (server({"serverVersion": {"gitVersion": "v1.29.3"}}), "is Kubernetes v1.29.3; timeslice needs 1.34 or newer"),
        ("echo 'dial tcp 10.0.0.1:6443: connect: connection refused' >&2; exit 1", "'prod' does not answer"),
        ("echo 'error: You must be logged in (Unauthorized)' >&2; exit 1", "context 'prod' may not"),
    ],
)
def test_clusters_that_will_not_do(
    version: str, told: str, tmp_path: Path, env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = program(tmp_path / "kubectl", FAKE.format(version=version))
    usual = env | {"PATH": "/usr/bin:/bin"}
    assert main(["status", "--context", "prod", "--kubectl", mine], usual) == 1
    assert told in capsys.readouterr().err


def test_status_where_nothing_is_installed(fake: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--context", "staging"], fake) == 1
    said = capsys.readouterr().out
    assert "cluster staging, Kubernetes v1.37.1" in said
    assert "timeslice is not installed there" in said
