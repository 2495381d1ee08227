"""The CDI file: what a container gets with a mock GPU, as `nvidia-ctk cdi generate` writes it for real ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_mock_kubernetes.config import NodeFolders
from gpu_mock_kubernetes.files import write_whole
from gpu_mock_kubernetes.mock import MockDevice

KIND = "nvidia.com/gpu"
FILE_NAME = "timeslice-gpu-mock.json"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
LOADER_FOLDERS = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
"""Where loaders of Debian's and of Fedora's kind look without ldconfig, and NVIDIA's runtime puts a driver."""


def device_name(uuid: str) -> str:
    """What the kubelet's plugins answer for a device, for the container runtime to find in the CDI file."""
    return f"{KIND}={uuid}"


def spec(devices: Iterable[MockDevice], folders: NodeFolders) -> dict[str, Any]:
    """The CDI file as an object. Each device is there by its UUID and by its index on the node, and `all` are together.

    What a container gets of one device does not disturb what it gets of another: one variable each, no lists.
    """
    granted = {device: f"TIMESLICE_GPU_MOCK_GRANT_{device.index}={device.uuid}" for device in devices}
    named = [
        *({"name": device.uuid, "containerEdits": {"env": [grant]}} for device, grant in granted.items()),
        *({"name": str(device.index), "containerEdits": {"env": [grant]}} for device, grant in granted.items()),
    ]
    if granted:
        named.append({"name": "all", "containerEdits": {"env": list(granted.values())}})
    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "devices": named,
        "containerEdits": {
            "env": [f"TIMESLICE_GPU_MOCK_DIR={folders.state}"],
            "mounts": [
                *(
                    _mount(folders.libraries / library, loader / library, "ro")
                    for loader in LOADER_FOLDERS
                    for library in LIBRARIES
                ),
                _mount(folders.state, folders.state, "rw"),
            ],
        },
    }


def write(devices: Iterable[MockDevice], folders: NodeFolders) -> None:
    """Write the file, whole: the runtime reads the folder at any time."""
    folders.cdi.mkdir(parents=True, exist_ok=True)
    write_whole(folders.cdi / FILE_NAME, json.dumps(spec(devices, folders), indent=2) + "\n")


def _mount(host: Path, inside: Path, access: str) -> dict[str, Any]:
    return {
        "hostPath": str(host),
        "containerPath": str(inside),
        "options": ["rbind", "rprivate", access, "nosuid", "nodev"],
    }
