"""The commands as processes: what they say, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_kubelet import FakeKubelet

from gpu_mock_kubernetes.config import NodeFolders

DEADLINE_S = 30.0


@pytest.fixture
def environment(folders: NodeFolders, source: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIMESLICE_", "KUBERNETES_"))}
    return {
        **kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUNBUFFERED": "1",
        "GPU_MOCK_DRIVER_DIR": str(folders.driver), "GPU_MOCK_STATE_DIR": str(folders.state),
        "CDI_DIR": str(folders.cdi), "KUBELET_DIR": str(folders.kubelet), "GPU_MOCK_SOURCE": str(source),
        "MOCK_GPUS": "1x8MiB", "MOCK_GPU_PREFAULT": "64KiB",
    }  # fmt: skip


class Command:
    def __init__(self, name: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "gpu_mock_kubernetes", name],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def until(self, message: str) -> dict[str, Any]:
        """Read its log up to this message."""
        assert self.process.stdout
        for line in self.process.stdout:
            if (found := json.loads(line))["msg"] == message:
                return dict(found)
        raise AssertionError(f"no line with {message!r}; stderr: {self.process.communicate()[1]}")

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@pytest.fixture
def commands(environment: dict[str, str]) -> Iterator[Any]:
    started: list[Command] = []

    def start(name: str, **more: str) -> Command:
        started.append(Command(name, {**environment, **more}))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_wait_ends_when_the_driver_comes(commands: Any) -> None:
    waiting = commands("wait")
    assert commands("install").end() == (0, "")
    assert waiting.end() == (0, "")
    assert commands("wait").end() == (0, "")


def test_wait_ends_with_sigterm(commands: Any, folders: NodeFolders) -> None:
    waiting = commands("wait")
    waiting.until("waits for the driver")
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.end() == (0, "")


async def test_the_device_plugin_ends_with_sigterm_and_leaves_no_socket(
    commands: Any, folders: NodeFolders, kubelet: FakeKubelet
) -> None:
    assert commands("install").end() == (0, "")
    ready = folders.state.parent / "ready"
    ready.touch()
    kubelet.refuse = grpc.StatusCode.UNAVAILABLE
    plugin = commands("device-plugin", READY_FILE=str(ready))
    plugin.until("not registered")
    assert not ready.exists(), "it is not ready, whatever its last life was"
    await kubelet.until(lambda: list(kubelet.health.values()) == ["Healthy"])
    plugin.until("registered")
    plugin.process.send_signal(signal.SIGTERM)
    await kubelet.until(lambda: kubelet.health == {})
    assert plugin.end() == (0, "")
    assert ready.exists()
    assert [one.name for one in folders.device_plugins.iterdir()] == ["kubelet.sock"]


async def test_a_killed_device_plugin_is_followed_by_another(commands: Any, kubelet: FakeKubelet) -> None:
    assert commands("install").end() == (0, "")
    for _ in range(2):
        plugin = commands("device-plugin")
        await kubelet.until(lambda: list(kubelet.health.values()) == ["Healthy"])
        plugin.process.kill()
        await kubelet.until(lambda: kubelet.health == {})


def test_what_went_wrong_is_one_line(commands: Any) -> None:
    failing = commands("install", MOCK_GPUS="many")
    assert "many is not understood" in failing.until("failed")["error"]
    assert failing.end() == (1, "")


def test_a_variable_that_the_manifests_must_give_is_named(commands: Any) -> None:
    failing = commands("driver")
    assert "POD_NAMESPACE is not set" in failing.until("failed")["error"]
    assert failing.end() == (1, "")


def test_uninstall_takes_all_away(commands: Any, folders: NodeFolders) -> None:
    assert commands("install").end() == (0, "")
    assert commands("uninstall").end() == (0, "")
    assert [path for folder in (folders.driver, folders.state, folders.cdi) for path in folder.rglob("*")] == []
