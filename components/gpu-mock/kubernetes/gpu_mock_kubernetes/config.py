"""Where things are on a node, and what the node is to have. Built once in main.py and handed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

UNIX_SOCKET_PATH_MAX = 107
"""Bytes of a path in sockaddr_un, without the final zero."""


class ConfigError(Exception):
    """The environment asks for something impossible. The text names the variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolders:
    """Folders of the node. A container that uses one has it mounted at the same path."""

    driver: Path = Path("/opt/timeslice-gpu-mock")
    """Versions of the libraries and the command; `lib` in it is the current one."""
    state: Path = Path("/run/timeslice-gpu-mock")
    """The mock devices: on a tmpfs."""
    cdi: Path = Path("/var/run/cdi")
    """Where containerd and CRI-O look for CDI files."""
    kubelet: Path = Path("/var/lib/kubelet")

    @property
    def libraries(self) -> Path:
        return self.driver / "lib"

    @property
    def offer(self) -> Path:
        """Written last by the installer, and removed before it changes anything: with it the devices may be offered."""
        return self.state / "offered.json"

    @property
    def device_plugins(self) -> Path:
        return self.kubelet / "device-plugins"

    @property
    def plugins(self) -> Path:
        return self.kubelet / "plugins"

    @property
    def plugin_registry(self) -> Path:
        return self.kubelet / "plugins_registry"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> NodeFolders:
        """Those of an ordinary node, unless variables (for tests) say otherwise."""
        names = {
            "driver": "GPU_MOCK_DRIVER_DIR", "state": "GPU_MOCK_STATE_DIR", "cdi": "CDI_DIR", "kubelet": "KUBELET_DIR"
        }  # fmt: skip
        return cls(**{field: Path(env[name]) for field, name in names.items() if env.get(name)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The mock GPUs that a node is to have."""

    gpus: str = "2x80GiB"
    """COUNTxSIZE, as `gpu-mock create` takes it."""
    name: str = "Mock H100 80GB HBM3"
    prefault: str = "64MiB"
    """So much of each device is filled in advance, from the node's tmpfs, and so counts in no pod's memory."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Recipe:
        """From MOCK_GPUS, MOCK_GPU_NAME, MOCK_GPU_PREFAULT; empty ones are as if not set."""
        names = {"gpus": "MOCK_GPUS", "name": "MOCK_GPU_NAME", "prefault": "MOCK_GPU_PREFAULT"}
        recipe = cls(**{field: env[name] for field, name in names.items() if env.get(name)})
        if not recipe.name.isprintable() or len(recipe.name) > 63 or set('"\\') & set(recipe.name):
            raise ConfigError(f"MOCK_GPU_NAME={recipe.name!r} is no device's name: at most 63 characters, no quotes")
        return recipe


def source_folder(env: Mapping[str, str]) -> Path:
    """Where the image has libcuda.so.1, libnvidia-ml.so.1, kernels.ptx and gpu-mock."""
    return Path(env.get("GPU_MOCK_SOURCE") or "/usr/lib/timeslice-gpu-mock")


def needed(env: Mapping[str, str], name: str) -> str:
    """The value of a variable that has no default.

    Raises:
        ConfigError: it is not set.
    """
    value = env.get(name)
    if not value:
        raise ConfigError(f"{name} is not set: the manifests take it from the downward API")
    return value
