"""The C code of libcuda.so.1 under the address, undefined-behaviour and thread sanitizers, driven by stress.c.

A finding ends the process with a report and a status that is not 0.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable

import pytest

from kernels import ptx_file
from mock_node import MockNode

STEPS = 300


ADDR_NO_RANDOMIZE = 0x0040000
LIBC = ctypes.CDLL(None)


def without_address_randomisation() -> None:
    """In the child: gcc 12's thread sanitizer gives up where vm.mmap_rnd_bits is above 28 (Ubuntu 24.04: 32)."""
    LIBC.personality(ADDR_NO_RANDOMIZE)


def run_to_the_end(node: MockNode, program: str, *arguments: str) -> None:
    environment = {
        **node.environment,
        "GPU_MOCK_PTX": str(ptx_file()),
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=100, check=False,
        preexec_fn=without_address_randomisation)  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.fixture(params=["GPU_MOCK_STRESS_SANITIZED", "GPU_MOCK_STRESS_THREADS"], ids=["address-undefined", "thread"])
def program(request: pytest.FixtureRequest) -> str:
    return os.environ[request.param]


@pytest.mark.parametrize("mode", ["init", "alloc", "copy", "launch", "context", "target", "wrong", "nvml"])
def test_one_process(new_node: Callable[..., MockNode], program: str, mode: str) -> None:
    run_to_the_end(new_node("1x4MiB"), program, mode, str(STEPS))


def test_processes_that_save_and_restore_each_other(new_node: Callable[..., MockNode], program: str) -> None:
    run_to_the_end(new_node("1x8MiB"), program, "together", str(STEPS))


def test_the_sanitizers_are_on(new_node: Callable[..., MockNode]) -> None:
    for name, tool in (("SANITIZED", "AddressSanitizer"), ("THREADS", "ThreadSanitizer")):
        with pytest.raises(AssertionError, match=tool):
            run_to_the_end(new_node("1x4MiB"), os.environ[f"GPU_MOCK_STRESS_{name}"], "fall", "1")
