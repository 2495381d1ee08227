"""gRPC is told how to poll only where it knows the words."""

import os
import subprocess
import sys

import pytest

from orchestrator.grpc_polling import FEWER_THREADS, VARIABLE, choose


@pytest.mark.parametrize(
    ("version", "is_told"), [("1.80.9", False), ("1.81.0", True), ("1.85.3", True), ("1.86.0", False), ("2.1", False)])
def test_only_versions_that_know_it_are_told(version: str, is_told: bool) -> None:
    environment: dict[str, str] = {}
    choose(environment, version)
    assert environment == ({VARIABLE: FEWER_THREADS} if is_told else {})


def test_what_the_user_has_set_stands() -> None:
    environment = {VARIABLE: ""}
    choose(environment, "1.85.3")
    assert environment == {VARIABLE: ""}


def test_the_installed_grpc_knows_it_or_is_not_told() -> None:
    code = (
        "import os; from orchestrator.grpc_polling import choose; choose(os.environ); import asyncio, grpc\n"
        "async def serve():\n    server = grpc.aio.server(); await server.start(); await server.stop(None)\n"
        "asyncio.run(serve())")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("GRPC_VERBOSITY", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "experiment" not in done.stderr
