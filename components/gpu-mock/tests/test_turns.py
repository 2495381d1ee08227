"""One device runs one kernel at a time, whoever launched it; kernels that wait for their peers let them in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

from cuda.bindings.driver import CUprocessState, CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, lock_args, state_of

SUCCESS = CUresult.CUDA_SUCCESS
NOT_READY = CUresult.CUDA_ERROR_NOT_READY


def kernel_spans(node: MockNode) -> list[tuple[int, int, int]]:
    """(begin, end, pid) of each kernel that ended, in order of time."""
    kernels = [line for line in node.journal() if line["kind"] == "kernel" and line["end_ns"] is not None]
    return sorted((line["begin_ns"], line["end_ns"], line["pid"]) for line in kernels)


def test_kernels_of_several_processes_never_overlap(node: MockNode) -> None:
    processes = [node.process() for _ in range(4)]
    launchers = [Kernels(process) for process in processes]
    for _ in range(15):
        for launcher in launchers:
            launcher.busy(1_000)
    for process in processes:
        process.ok.cuCtxSynchronize()
    spans = kernel_spans(node)
    assert len(spans) == 60
    assert {pid for _, _, pid in spans} == {process.pid for process in processes}
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_nobody_is_starved(node: MockNode) -> None:
    first, second = node.process(), node.process()
    kernels = [Kernels(first), Kernels(second)]
    for _ in range(300):
        kernels[0].busy(3_000)
    for _ in range(4):
        kernels[1].busy(3_000)
    second.ok.cuCtxSynchronize()
    assert first.code.cuStreamQuery(0) == NOT_READY  # the second one's four did not wait for all three hundred


def test_devices_do_not_wait_for_each_other(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x1MiB")
    first, second = node.process(device=0), node.process(device=1)
    Kernels(first).busy(60_000_000)
    node.wait_until_running(first)
    Kernels(second).busy(1_000)
    second.ok.cuCtxSynchronize()
    assert first.code.cuStreamQuery(0) == NOT_READY
    lines = {line["pid"]: line["device"] for line in node.journal() if line["kind"] == "kernel"}
    assert lines == {first.pid: 0, second.pid: 1}


def test_busy_occupies_the_device_for_as_long_as_it_says(node: MockNode) -> None:
    process = node.process()
    Kernels(process).busy(30_000)
    process.ok.cuCtxSynchronize()
    [(begin, end, _)] = kernel_spans(node)
    assert 30e6 <= end - begin < 1e9


def test_killed_owner_lets_the_next_one_in(node: MockNode) -> None:
    first, second = node.process(), node.process()
    Kernels(first).busy(60_000_000)
    node.wait_until_running(first)
    kernels = Kernels(second)
    kernels.busy(1_000)
    waiting = second.begin("cuCtxSynchronize")
    assert waiting.is_blocked_for(0.1)
    first.kill()
    assert waiting.result(timeout_s=5) == (SUCCESS,)


# ---- kernels that wait for their peers


def shared_counter(node: MockNode, processes: list[MockProcess]) -> list[int]:
    """Host memory that all of them have mapped and registered; returns each one's address of it."""
    path = node.folder / "counter"
    path.write_bytes(bytes(4096))
    addresses = []
    for process in processes:
        address = process.map_file(str(path))
        process.ok.cuMemHostRegister(address, 4096, 0)
        addresses.append(address)
    return addresses


def test_kernel_spins_until_its_peer_launches(node: MockNode) -> None:
    ranks = [node.process(), node.process()]
    counters = shared_counter(node, ranks)
    kernels = [Kernels(rank) for rank in ranks]
    kernels[0].launch("meet", counters[0], 2)
    waiting = ranks[0].begin("cuCtxSynchronize")
    assert waiting.is_blocked_for(0.1)
    kernels[1].launch("meet", counters[1], 2)
    assert waiting.result(timeout_s=5) == (SUCCESS,)
    ranks[1].ok.cuCtxSynchronize()


def test_many_rounds_of_three_ranks(node: MockNode) -> None:
    ranks = [node.process() for _ in range(3)]
    counters = shared_counter(node, ranks)
    launchers = [Kernels(rank) for rank in ranks]
    for _ in range(20):
        for launcher, counter in zip(launchers, counters, strict=True):
            launcher.launch("meet", counter, 3)
    for rank in ranks:
        rank.ok.cuCtxSynchronize()
    assert struct.unpack("<I", ranks[0].peek(counters[0], 4)) == (60,)


def test_ranks_of_one_process_meet_in_device_memory(node: MockNode) -> None:
    process = node.process()
    counter = process.ok.cuMemAlloc(4)
    process.ok.cuMemsetD32(counter, 0, 1)
    streams = [process.ok.cuStreamCreate(1) for _ in range(2)]
    kernels = Kernels(process)
    kernels.launch("meet", counter, 2, stream=streams[0])
    assert process.code.cuStreamQuery(streams[0]) == NOT_READY
    kernels.launch("meet", counter, 2, stream=streams[1])
    for stream in streams:
        process.ok.cuStreamSynchronize(stream)


def test_locking_one_rank_of_two_runs_into_its_timeout(node: MockNode) -> None:
    """What real ranks show: the lock waits for a kernel that waits for a peer that has not launched yet."""
    agent, *ranks = node.process(device=None), node.process(), node.process()
    agent.ok.cuInit(0)
    counters = shared_counter(node, ranks)
    kernels = [Kernels(rank) for rank in ranks]
    kernels[0].launch("meet", counters[0], 2)
    assert agent.code.cuCheckpointProcessLock(ranks[0].pid, lock_args(80)) == NOT_READY
    assert state_of(agent, ranks[0].pid) == CUprocessState.CU_PROCESS_STATE_RUNNING
    kernels[1].launch("meet", counters[1], 2)
    for rank in ranks:
        assert agent.code.cuCheckpointProcessLock(rank.pid, lock_args(5000)) == SUCCESS


def test_killed_peer_leaves_its_rank_spinning_and_the_device_usable(node: MockNode) -> None:
    ranks = [node.process(), node.process()]
    counters = shared_counter(node, ranks)
    Kernels(ranks[0]).launch("meet", counters[0], 2)
    ranks[1].kill()
    spinning = ranks[0].begin("cuCtxSynchronize")
    other = node.process()
    Kernels(other).busy(1_000)
    other.ok.cuCtxSynchronize()
    assert spinning.is_blocked_for(0.05)
