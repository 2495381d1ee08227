"""The ground truth: who did what on which device when, as the mock saw it, whatever was killed meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from cuda.bindings.driver import CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess

KIB, MIB = 1 << 10, 1 << 20


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat."""
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[19])


def of_kind(node: MockNode, *kinds: str) -> list[dict[str, Any]]:
    return [line for line in node.journal() if line["kind"] in kinds]


def test_every_act_leaves_its_line(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x4MiB")
    began = time.monotonic_ns()
    process, agent = node.process(device=1), node.process(device=None)
    agent.ok.cuInit(0)
    pointer = process.ok.cuMemAlloc(64 * KIB)
    other = process.ok.cuMemAlloc(64 * KIB)
    host = process.host(64 * KIB)
    process.ok.cuMemcpyHtoD(pointer, host, 64 * KIB)
    process.ok.cuMemcpyDtoD(other, pointer, 32 * KIB)
    process.ok.cuMemcpyDtoH(host, pointer, 16 * KIB)
    process.ok.cuMemsetD32(pointer, 1, 1000)
    Kernels(process).busy(100)
    process.ok.cuCtxSynchronize()
    for call in ("Lock", "Checkpoint", "Restore", "Unlock"):
        getattr(agent.ok, f"cuCheckpointProcess{call}")(process.pid, None)
    process.ok.cuMemFree(pointer)
    ended = time.monotonic_ns()
    lines = [line for line in node.journal() if line["pid"] == process.pid]
    acts = [(line["kind"], line["name"], line["bytes"]) for line in lines]
    for expected in [
        ("alloc", "", 64 * KIB), ("copy", "h2d", 64 * KIB), ("copy", "d2d", 32 * KIB), ("copy", "d2h", 16 * KIB),
        ("memset", "d32", 4000), ("kernel", "busy", 0), ("free", "", 64 * KIB),
    ]:  # fmt: skip
        assert expected in acts
    states = [(line["kind"], line["state"], line["result"]) for line in lines if line["kind"] in (
        "lock", "checkpoint", "restore", "unlock")]  # fmt: skip
    assert states == [
        ("lock", "locked", 0), ("checkpoint", "checkpointed", 0), ("restore", "locked", 0), ("unlock", "running", 0),
    ]  # fmt: skip
    calls = [line for line in lines if line["kind"] == "call"]
    assert [line["name"] for line in calls] == ["lock", "checkpoint", "restore", "unlock"]
    for call in calls:  # as the caller saw it: around what the thread in the process did
        [inner] = [line for line in lines if line["kind"] == call["name"]]
        assert call["begin_ns"] <= inner["begin_ns"] <= inner["end_ns"] <= call["end_ns"]
    assert Counter(line["kind"] for line in lines)["join"] == 1
    for line in lines:
        assert line["start_time"] == start_time(process.pid)
        assert began <= line["begin_ns"] <= line["end_ns"] <= ended
        if line["kind"] in ("alloc", "free", "copy", "memset", "kernel", "context"):
            assert line["device"] == 1


def test_failed_acts_carry_their_result(node: MockNode) -> None:
    process = node.process()
    assert process.code.cuMemAlloc(2 * MIB) == CUresult.CUDA_ERROR_OUT_OF_MEMORY
    [line] = of_kind(node, "alloc")
    assert (line["result"], line["bytes"]) == (int(CUresult.CUDA_ERROR_OUT_OF_MEMORY), 2 * MIB)


def test_kernel_is_seen_while_it_runs_and_once_when_it_has_ended(node: MockNode) -> None:
    process = node.process()
    Kernels(process).busy(300_000)
    node.wait_until_running(process)
    assert [line["end_ns"] for line in of_kind(node, "kernel")] == [None]
    process.ok.cuCtxSynchronize()
    [line] = of_kind(node, "kernel")
    assert line["end_ns"] - line["begin_ns"] >= 300_000_000


def test_kernel_cut_off_by_a_kill_began_and_never_ended(node: MockNode) -> None:
    process, witness = node.process(), node.process()
    Kernels(process).busy(60_000_000)
    node.wait_until_running(process)
    process.kill()
    Kernels(witness).busy(10)
    witness.ok.cuMemFree(witness.ok.cuMemAlloc(16))
    kernels = {line["pid"]: line["end_ns"] for line in of_kind(node, "kernel")}
    assert kernels[process.pid] is None
    gone = [line for line in of_kind(node, "gone") if line["pid"] == process.pid]
    assert len(gone) == 1
    assert gone[0]["begin_ns"] >= next(line["begin_ns"] for line in of_kind(node, "kernel"))


def test_many_writers_lose_nothing(node: MockNode) -> None:
    processes = [node.process() for _ in range(4)]
    pointers = [process.ok.cuMemAlloc(4096) for process in processes]
    waiting = [
        process.begin("repeat", 500, [("cuMemsetD8", (pointer, 1, number + 1))])
        for number, (process, pointer) in enumerate(zip(processes, pointers, strict=True))
    ]
    for pending in waiting:
        pending.result()
    counts = Counter((line["pid"], line["bytes"]) for line in of_kind(node, "memset"))
    assert counts == {(process.pid, number + 1): 500 for number, process in enumerate(processes)}


def test_reader_passes_over_what_is_not_whole(node: MockNode) -> None:
    process = node.process()
    pointer = process.ok.cuMemAlloc(4096)
    process.ok.cuMemsetD8(pointer, 1, 11)
    journal = node.folder / "journal"
    last = journal.read_bytes()[-128:]
    flipped = last[:60] + bytes([last[60] ^ 1]) + last[61:]
    with journal.open("ab") as file:
        file.write(flipped + bytes(128))
    process.ok.cuMemsetD8(pointer, 1, 22)
    assert [line["bytes"] for line in of_kind(node, "memset")] == [11, 22]


def test_pids_are_those_of_the_reader_also_from_other_namespaces(node: MockNode) -> None:
    process = node.process(in_new_namespace=True)
    process.ok.cuMemAlloc(4096)
    [line] = of_kind(node, "alloc")
    assert (line["pid"], line["inner_pid"]) == (process.pid, 1)
    assert line["start_time"] == start_time(process.pid)


def test_device_time_without_a_lease_can_be_found(node: MockNode) -> None:
    """What demo and soak do with it: nobody but the holder ran on the device during its hold."""
    holder, intruder = node.process(), node.process()
    begin = time.monotonic_ns()
    Kernels(holder).busy(2_000)
    holder.ok.cuCtxSynchronize()
    assert stolen_ns(node, holder, begin, time.monotonic_ns()) == 0
    Kernels(intruder).busy(1_000)
    intruder.ok.cuCtxSynchronize()
    assert stolen_ns(node, holder, begin, time.monotonic_ns()) >= 1_000_000


def stolen_ns(node: MockNode, holder: MockProcess, begin: int, end: int) -> int:
    others = [line for line in of_kind(node, "kernel") if line["pid"] != holder.pid]
    return sum(max(0, min(line["end_ns"], end) - max(line["begin_ns"], begin)) for line in others)
