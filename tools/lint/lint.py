"""Run ruff or mypy on all Python sources of the repository, as a Bazel test.

The sources lie in the test's runfiles. ruff checks all of them, mypy checks (strictly) what ships (the packages and
the examples), and the tests on a cluster, which nobody runs at each change. The result is written as one test case
per tool, so that it counts like any other.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

IMPORT_ROOTS = [
    "benchmarks",
    "components/client-py/src",
    "components/gpu-mock/kubernetes",
    "components/gpu-mock/kubernetes/kubelet_api_py",
    "components/gpu-mock/python",
    "components/orchestrator",
    "components/snapshot-agent",
    "deploy",
    "examples",
    "proto/orchestrator_py",
    "proto/snapshot_agent_py",
    "tests/integration",
    "tests/integration/kind",
    "tools/kind",
    "tools/oci",
]
"""Where first-party imports start, relative to the repository."""

TYPED_PACKAGES = {
    "3.10": ["components/client-py/src/timeslice", "components/gpu-mock/python/timeslice_gpu_mock"],
    "3.11": [
        "components/gpu-mock/kubernetes/gpu_mock_kubernetes",
        "components/orchestrator/orchestrator",
        "components/snapshot-agent/snapshot_agent_server",
        "deploy/timeslice_deploy",
        "examples/timeslice_demo",
        "images/load.py",
        "images/push.py",
        "benchmarks/timeslice_benchmarks",
        "tests/integration/kind",
        "tools/kind/timeslice_kind",
        "tools/oci/oci_images",
    ],
}
"""What mypy checks, by the oldest Python that it runs on."""


def ruff(root: pathlib.Path) -> int:
    files = [
        str(p)
        for p in root.rglob("*.py")
        if "external" not in p.parts and not p.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]
    return subprocess.call(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", "ruff.toml", *files], cwd=root
    )


def mypy(root: pathlib.Path) -> int:
    env = dict(os.environ, MYPYPATH=os.pathsep.join(IMPORT_ROOTS))
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", cache]
        return max(
            subprocess.call([*command, "--python-version", version, *packages], cwd=root, env=env)
            for version, packages in TYPED_PACKAGES.items()
        )


def main() -> int:
    tool = sys.argv[1]
    # The tools run as children and see what Bazel put on our path.
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    return {"ruff": ruff, "mypy": mypy}[tool](pathlib.Path.cwd())


if __name__ == "__main__":
    sys.exit(main())
