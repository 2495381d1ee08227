"""Processes in a PID namespace of their own and of another user, as in pods, seen and saved from the node's."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest
from cuda.bindings.driver import CUprocessState, CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, state_of

KIB, MIB = 1 << 10, 1 << 20
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE
OTHER_USER = 1234


@pytest.fixture
def agent(node: MockNode) -> MockProcess:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    return agent


@pytest.fixture
def target(node: MockNode) -> MockProcess:
    uid = OTHER_USER if os.getuid() == 0 else None
    return node.process(in_new_namespace=True, uid=uid)


def test_target_is_process_1_of_another_user(target: MockProcess) -> None:
    assert target.own_pid() == 1 != target.pid
    if os.getuid() == 0:
        assert os.stat(f"/proc/{target.pid}").st_uid == OTHER_USER


def test_whole_round_from_outside(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    pointer = target.ok.cuMemAlloc(768 * KIB)
    target.ok.cuMemsetD8(pointer, 0x3C, 768 * KIB)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    assert target.begin("cuMemGetInfo").is_blocked_for(0.05)
    agent.ok.cuCheckpointProcessCheckpoint(target.pid, None)
    assert state_of(agent, target.pid) == CUprocessState.CU_PROCESS_STATE_CHECKPOINTED
    second = node.process()
    second.ok.cuMemAlloc(MIB)
    second.kill()
    agent.ok.cuCheckpointProcessRestore(target.pid, None)
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)
    back = target.host(768 * KIB)
    target.ok.cuMemcpyDtoH(back, pointer, 768 * KIB)
    assert target.peek(back, 768 * KIB) == b"\x3c" * 768 * KIB


def test_killed_from_outside_it_leaves_nothing(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    target.ok.cuMemAlloc(MIB)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    target.kill()
    assert agent.code.cuCheckpointProcessGetState(target.pid) == INVALID_VALUE
    node.process().ok.cuMemAlloc(MIB)


def test_two_processes_1_are_told_apart(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    twin = node.process(in_new_namespace=True)
    assert (target.own_pid(), twin.own_pid()) == (1, 1)
    agent.ok.cuCheckpointProcessLock(target.pid, None)
    assert state_of(agent, target.pid) == CUprocessState.CU_PROCESS_STATE_LOCKED
    assert state_of(agent, twin.pid) == CUprocessState.CU_PROCESS_STATE_RUNNING
    twin.ok.cuMemAlloc(4096)
    twin.kill()
    assert state_of(agent, target.pid) == CUprocessState.CU_PROCESS_STATE_LOCKED
    agent.ok.cuCheckpointProcessUnlock(target.pid, None)


def test_inside_the_namespace_pids_are_its_own(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    assert state_of(target, 1) == CUprocessState.CU_PROCESS_STATE_RUNNING
    assert target.code.cuCheckpointProcessGetState(target.pid) == INVALID_VALUE
    assert target.code.cuCheckpointProcessGetState(agent.pid) == INVALID_VALUE


def test_nvml_shows_pids_of_the_asker(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    neighbour = node.process()
    neighbour.ok.cuMemAlloc(64 * KIB)
    target.ok.cuMemAlloc(128 * KIB)

    def seen_by(asker: MockProcess) -> dict[int, int]:
        asker.nvmlInit()
        processes = asker.nvmlDeviceGetComputeRunningProcesses(asker.nvmlDeviceGetHandleByIndex(0))
        return {process["pid"]: process["usedGpuMemory"] for process in processes}

    assert seen_by(agent) == {target.pid: 128 * KIB, neighbour.pid: 64 * KIB}
    assert seen_by(target) == {1: 128 * KIB}


def test_kernels_of_two_namespaces_take_turns(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    twin = node.process(in_new_namespace=True)
    kernels = [Kernels(target), Kernels(twin)]
    for _ in range(10):
        for each in kernels:
            each.busy(2_000)
    for process in (target, twin):
        process.ok.cuCtxSynchronize()
    spans = sorted((line["begin_ns"], line["end_ns"]) for line in node.journal() if line["kind"] == "kernel")
    assert len(spans) == 20
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_namespaces_do_not_share_kills(node: MockNode, agent: MockProcess, target: MockProcess) -> None:
    twin = node.process(in_new_namespace=True)
    Kernels(twin).busy(60_000_000)
    node.wait_until_running(twin)
    Kernels(target).busy(1_000)
    waiting = target.begin("cuCtxSynchronize")
    assert waiting.is_blocked_for(0.1)
    twin.kill()
    assert waiting.result(timeout_s=5) == (CUresult.CUDA_SUCCESS,)


def test_unknown_user_may_create_the_folder_for_all(new_node: Callable[..., MockNode]) -> None:
    node = new_node("1x1MiB")
    assert node.folder.stat().st_mode & 0o777 == 0o777
    assert {file.stat().st_mode & 0o666 for file in node.folder.iterdir()} == {0o666}
