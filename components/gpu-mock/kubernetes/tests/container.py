"""A container as the runtime would make it from the CDI file, as far as the loader and the mock can tell: a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from gpu_mock_kubernetes import cdi
from gpu_mock_kubernetes.config import NodeFolders

PROGRAM = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
result = cuda.cuInit(0)
uuids = []
if result == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        raw = (ctypes.c_char * 16)()
        cuda.cuDeviceGetUuid(raw, index)
        uuids.append(bytes(raw).hex())
print(json.dumps({"result": result, "uuids": uuids}), flush=True)
sys.stdin.read()
"""


class Container:
    """Runs until it leaves the `with`; holds the devices of the CDI names while it runs."""

    def __init__(self, folders: NodeFolders, cdi_names: Sequence[str]) -> None:
        spec = json.loads((folders.cdi / cdi.FILE_NAME).read_text())
        by_name = {f"{spec['kind']}={one['name']}": one["containerEdits"]["env"] for one in spec["devices"]}
        edits = [*spec["containerEdits"]["env"], *(line for name in cdi_names for line in by_name[name])]
        mounted = {mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
        assert {str(folders.libraries / name) for name in cdi.LIBRARIES} <= mounted
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("TIMESLICE_")},
                "LD_LIBRARY_PATH": str(folders.libraries.resolve()),
                **dict(line.split("=", 1) for line in edits),
            },
        )  # fmt: skip

    def __enter__(self) -> Container:
        assert self._process.stdout
        said = json.loads(self._process.stdout.readline())
        self.result: int = said["result"]
        self.uuids = [f"GPU-{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in said["uuids"]]
        """As the program in it sees its devices, in their order."""
        self.pid = self._process.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
