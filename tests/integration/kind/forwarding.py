"""Ports of pods and services, for clients in the test's own process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kube import Kube


@contextlib.contextmanager
def forwarded(kube: Kube, namespace: str, name: str, port: int) -> Iterator[str]:
    """The gRPC target at which a port of "pod/NAME" or "service/NAME" can be reached for the length of the block."""
    command = [kube.kubectl, "--context", kube.context, "port-forward", "-n", namespace, name, f"0:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            chosen = re.search(r":(\d+) ->", forward.stdout.readline())
            assert chosen, f"kubectl port-forward ended with {forward.wait()}"
            with _reached(kube, chosen[1]) as target:
                yield target
        finally:
            forward.terminate()


@contextlib.contextmanager
def _reached(kube: Kube, port: str) -> Iterator[str]:
    """The gRPC target of a port of 127.0.0.1 where kubectl runs: maybe in the network namespace of a cluster."""
    program = [sys.executable, str(Path(__file__).with_name("relay.py"))]
    inside = kube.inside(program)
    if inside == program:
        yield f"127.0.0.1:{port}"
        return
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        path = f"{folder}/relay.sock"
        with subprocess.Popen([*inside, path, port], stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                yield f"unix:{path}"
            finally:
                child.terminate()
