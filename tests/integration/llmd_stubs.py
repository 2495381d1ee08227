"""Python stubs of the contract as a peer knows it that has none of the extensions (llmd_contract/), made on demand.

They have the same package names as ours, and one process cannot hold both: whoever uses them is a process of its own,
with their folder first on PYTHONPATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc_tools

CONTRACT = Path(__file__).parent / "llmd_contract"
PROTOS = ("snapshot_agent/v1alpha1/snapshot_agent.proto", "timeslice_orchestrator/v1alpha1/orchestrator.proto")


def generate(folder: Path) -> Path:
    """Write the stubs into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    protoc("--python_out=" + str(folder), "--grpc_python_out=" + str(folder))
    return folder


def protoc(*options: str) -> None:
    """Compile both files of the contract with these options."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{CONTRACT}", f"-I{well_known}", *options, *PROTOS]
    # Its import of pkg_resources may warn, and the tests take warnings for errors.
    env = dict(os.environ, PYTHONWARNINGS="ignore", PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    subprocess.run(command, check=True, env=env, timeout=60)


def environment(stubs: Path) -> dict[str, str]:
    """The environment of a process that knows these stubs, and nothing of ours."""
    ours = ("snapshot_agent/v1alpha1", "timeslice_orchestrator/v1alpha1", "timeslice", "orchestrator")
    paths = [path for path in sys.path if path and not any((Path(path) / name).exists() for name in ours)]
    return dict(os.environ, PYTHONPATH=os.pathsep.join([str(stubs), *paths]))
