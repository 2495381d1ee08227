"""The command gpu-mock: what it makes, shows and runs, and what it says to bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mock_node import MockNode, library_folder

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for mock GPUs where there are none yet."""
    folder = Path("/dev/shm") / f"gpu-mock-command-{os.getpid()}"
    yield folder
    if folder.exists():
        shutil.rmtree(folder)


def gpu_mock(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIMESLICE_")}
    return subprocess.run(
        [str(library_folder() / "gpu-mock"), *arguments], capture_output=True, text=True, timeout=30, check=False,
        env={**kept, "TIMESLICE_GPU_MOCK_DIR": str(folder), **environment},
    )  # fmt: skip


def test_created_gpus_are_shown(folder: Path) -> None:
    assert gpu_mock(folder, "create", "2x80GiB", "--name", "Test GPU", "--cuda", "12080").returncode == 0
    shown = json.loads(gpu_mock(folder, "show", "--json").stdout)
    assert [(device["name"], device["memory_bytes"]) for device in shown["devices"]] == [("Test GPU", 80 << 30)] * 2
    assert shown["cuda_version"] == 12080
    assert "Test GPU" in gpu_mock(folder, "show").stdout
    assert gpu_mock(folder, "reset", "--all").returncode == 0
    assert not folder.exists()


def test_shown_processes_carry_state_and_bytes(node: MockNode) -> None:
    target, agent = node.process(), node.process(device=None)
    agent.ok.cuInit(0)
    target.ok.cuMemAlloc(64 * KIB)

    def seen() -> tuple[str, list[int], list[int]]:
        processes = json.loads(node.control("show", "--json"))["processes"]
        [found] = [process for process in processes if process["pid"] == target.pid]
        return found["state"], found["used_bytes"], found["saved_bytes"]

    assert seen() == ("running", [64 * KIB], [0])
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    assert seen() == ("locked", [64 * KIB], [0])
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    assert seen() == ("checkpointed", [0], [64 * KIB])


def test_command_runs_with_the_mock_on_its_path(folder: Path) -> None:
    program = "from cuda.bindings.driver import *; cuInit(0); print(cuDeviceGetCount()[1], cuDeviceTotalMem(1)[1])"
    python_path = os.pathsep.join(path for path in sys.path if path)
    command = ["run", "--", sys.executable, "-c", program]
    done = gpu_mock(folder, *command, TIMESLICE_GPU_MOCK="3x5MiB", PYTHONPATH=python_path)
    assert (done.stdout.split(), done.returncode) == (["3", str(5 * MIB)], 0), done.stderr


def test_status_of_the_command_is_handed_on(folder: Path) -> None:
    assert gpu_mock(folder, "run", "--", "sh", "-c", "exit 7", TIMESLICE_GPU_MOCK="1x1MiB").returncode == 7
    assert gpu_mock(folder, "run", "--", "/no/such/program", TIMESLICE_GPU_MOCK="1x1MiB").returncode == 127


def test_env_is_what_run_sets(folder: Path) -> None:
    exports = gpu_mock(folder, "env").stdout
    shell = subprocess.run(
        ["sh", "-c", f"{exports}\necho $TIMESLICE_GPU_MOCK_DIR; echo $LD_LIBRARY_PATH"],
        capture_output=True, text=True, check=True)  # fmt: skip
    shown_folder, path = shell.stdout.splitlines()
    assert shown_folder == str(folder)
    assert (Path(path.split(":")[0]) / "libcuda.so.1").samefile(library_folder() / "libcuda.so.1")


def test_settings_faults_and_journal_are_new_after_a_reset(node: MockNode) -> None:
    process = node.process()
    node.inject("fail", "op=alloc")
    node.inject("speed", "out=1")
    node.inject("device-lost")
    node.control("reset")
    process.ok.cuMemAlloc(16)
    shown = json.loads(node.control("show", "--json"))
    assert shown["faults"] == []
    assert (shown["devices"][0]["out_gbps"], shown["devices"][0]["lost"]) == (0, 0)
    assert [line["kind"] for line in node.journal()] == ["alloc"]


def test_faults_may_come_from_a_file(node: MockNode, tmp_path: Path) -> None:
    process = node.process()
    words = tmp_path / "faults"
    words.write_text("# two faults\nfail op=alloc times=1\n\nhang op=lock for=0.1  # and one more\n")
    assert len(node.control("inject", "-f", str(words)).split()) == 2
    assert node.control("inject", "--list").count("fault ") == 2
    node.has_faults = True
    assert process.code.cuMemAlloc(16) == 3
    process.ok.cuMemAlloc(16)


def test_prefaulted_memory_stays_with_the_file_and_is_zeroed(new_node: Callable[..., MockNode]) -> None:
    """So that its pages count in the cgroup of whoever made it, and not in that of the pod that touches them first."""
    node = new_node("1x1MiB")
    node.control("reset", "--all")
    node.control("create", "1x4MiB", "--prefault")
    device = node.folder / "device0"
    assert device.stat().st_blocks * 512 == 4 * MIB
    first = node.process()
    first.ok.cuMemsetD8(first.ok.cuMemAlloc(4 * MIB), 0xAA, 4 * MIB)
    first.kill()
    second = node.process()
    pointer = second.ok.cuMemAlloc(4 * MIB)
    back = second.host(4 * MIB)
    second.ok.cuMemcpyDtoH(back, pointer, 4 * MIB)
    assert second.peek(back, 4 * MIB) == bytes(4 * MIB)
    second.ok.cuMemFree(pointer)
    assert device.stat().st_blocks * 512 == 4 * MIB


def test_a_large_device_can_be_prefaulted_in_part(new_node: Callable[..., MockNode]) -> None:
    """Memory is given from the start of the device, so that little work stays in what was filled in advance."""
    node = new_node("1x1MiB")
    node.control("reset", "--all")
    node.control("create", "1x80GiB", "--prefault=1MiB")
    device = node.folder / "device0"
    assert device.stat().st_blocks * 512 == 1 * MIB
    process = node.process()
    pointer = process.ok.cuMemAlloc(3 * MIB)
    process.ok.cuMemsetD8(pointer, 0xAA, 3 * MIB)
    assert device.stat().st_blocks * 512 == 3 * MIB
    process.ok.cuMemFree(pointer)
    assert device.stat().st_blocks * 512 == 1 * MIB
    again = process.ok.cuMemAlloc(3 * MIB)
    back = process.host(3 * MIB)
    process.ok.cuMemcpyDtoH(back, again, 3 * MIB)
    assert process.peek(back, 3 * MIB) == bytes(3 * MIB)


@pytest.mark.parametrize(
    "words", [["inject", "device-lost"], ["inject", "fail", "op=lock"], ["inject", "--clear"], ["reset"]]
)
def test_watchers_of_the_folder_hear_of_a_change(node: MockNode, words: list[str]) -> None:
    """The state is mapped, and a store to a mapping is no event; whoever reports health need not poll."""
    before = (node.folder / "state").stat().st_mtime_ns
    node.control(*words)
    assert (node.folder / "state").stat().st_mtime_ns > before


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "2y80GiB"], ["create", "0x1GiB"], ["create", "99x1GiB"], ["create", "1x"], ["create", "--colour"],
        ["create", "1x1MiB", "--cuda", "12.8"], ["create", "1x1MiB", "--prefault=much"],
        ["show", "--colour"], ["journal", "--colour"], ["reset", "--colour"],
        ["run"], ["nonsense"], ["show"], ["inject", "fail", "op=lock"], ["inject"],
    ],
)  # fmt: skip
def test_bad_use_is_one_line_that_says_what_to_do(folder: Path, arguments: list[str]) -> None:
    done = gpu_mock(folder, *arguments)
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert line.startswith("gpu-mock: ")
    assert not (folder / "state").exists()


def test_gpus_are_not_made_twice(node: MockNode) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        node.control("create", "2x1MiB")
    assert "reset --all" in caught.value.stderr


@pytest.mark.parametrize("damage", ["older", "shorter", "empty", "not ours"])
def test_state_of_another_version_is_refused(folder: Path, damage: str) -> None:
    assert gpu_mock(folder, "create", "1x1MiB").returncode == 0
    state = folder / "state"
    content = bytearray(state.read_bytes())
    if damage == "older":
        content[4] ^= 0xFF
    elif damage == "not ours":
        content[0] ^= 0xFF
    else:
        content = content[: len(content) // 2] if damage == "shorter" else bytearray()
    state.write_bytes(content)
    done = gpu_mock(folder, "show")
    assert done.returncode == 1
    assert "another version" in done.stderr


def test_check_finds_a_wrong_state(new_node: Callable[..., MockNode]) -> None:
    """The checker that all tests end with: pages that nobody owns are found."""
    node = new_node("1x1MiB")
    with (node.folder / "device0").open("r+b") as device:
        device.write(b"x" * 8192)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        node.check()
    assert "device 0" in caught.value.stderr
    os.truncate(node.folder / "device0", 0)
    os.truncate(node.folder / "device0", MIB)
    node.check()
