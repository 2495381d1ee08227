"""The CDI file as a whole: what a container gets with a device."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_mock_kubernetes import cdi
from gpu_mock_kubernetes.config import NodeFolders
from gpu_mock_kubernetes.mock import MockDevice

DEVICES = [MockDevice(0, "GPU-aaa", "Mock", 1 << 30, False), MockDevice(1, "GPU-bbb", "Mock", 1 << 30, True)]


def mount(host: str, inside: str, access: str) -> dict[str, object]:
    options = ["rbind", "rprivate", access, "nosuid", "nodev"]
    return {"hostPath": host, "containerPath": inside, "options": options}


def test_the_whole_file() -> None:
    lib = "/opt/timeslice-gpu-mock/lib"
    assert cdi.spec(DEVICES, NodeFolders()) == {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "GPU-aaa", "containerEdits": {"env": ["TIMESLICE_GPU_MOCK_GRANT_0=GPU-aaa"]}},
            {"name": "GPU-bbb", "containerEdits": {"env": ["TIMESLICE_GPU_MOCK_GRANT_1=GPU-bbb"]}},
            {"name": "0", "containerEdits": {"env": ["TIMESLICE_GPU_MOCK_GRANT_0=GPU-aaa"]}},
            {"name": "1", "containerEdits": {"env": ["TIMESLICE_GPU_MOCK_GRANT_1=GPU-bbb"]}},
            {
                "name": "all",
                "containerEdits": {
                    "env": ["TIMESLICE_GPU_MOCK_GRANT_0=GPU-aaa", "TIMESLICE_GPU_MOCK_GRANT_1=GPU-bbb"],
                },
            },
        ],
        "containerEdits": {
            "env": ["TIMESLICE_GPU_MOCK_DIR=/run/timeslice-gpu-mock"],
            "mounts": [
                mount(f"{lib}/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "ro"),
                mount(f"{lib}/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "ro"),
                mount(f"{lib}/libcuda.so.1", "/usr/lib64/libcuda.so.1", "ro"),
                mount(f"{lib}/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1", "ro"),
                mount("/run/timeslice-gpu-mock", "/run/timeslice-gpu-mock", "rw"),
            ],
        },
    }


def test_the_file_is_replaced_whole_and_readable_by_all(tmp_path: Path) -> None:
    folders = NodeFolders(cdi=tmp_path / "cdi")
    cdi.write(DEVICES, folders)
    cdi.write(DEVICES[:1], folders)
    [file] = folders.cdi.iterdir()
    assert json.loads(file.read_text()) == cdi.spec(DEVICES[:1], folders)
    assert file.stat().st_mode & 0o777 == 0o644
