"""Every fault that can be injected at run time: what it strikes, how often, and how it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pynvml
import pytest
from cuda.bindings.driver import CUprocessState, CUresult

from kernels import Kernels
from mock_node import MockNode, MockProcess, Pending, state_of

KIB, MIB = 1 << 10, 1 << 20
SUCCESS = CUresult.CUDA_SUCCESS
FLAKE = CUresult.CUDA_ERROR_NOT_INITIALIZED  # "initialization error"
OUT_OF_MEMORY = CUresult.CUDA_ERROR_OUT_OF_MEMORY
ILLEGAL_STATE = CUresult.CUDA_ERROR_ILLEGAL_STATE
RUNNING = CUprocessState.CU_PROCESS_STATE_RUNNING
LOCKED = CUprocessState.CU_PROCESS_STATE_LOCKED
CHECKPOINTED = CUprocessState.CU_PROCESS_STATE_CHECKPOINTED
FAILED = CUprocessState.CU_PROCESS_STATE_FAILED

CALLS = {
    "lock": "cuCheckpointProcessLock", "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore", "unlock": "cuCheckpointProcessUnlock",
}  # fmt: skip
BEFORE = {"lock": [], "checkpoint": ["lock"], "restore": ["lock", "checkpoint"], "unlock": ["lock"]}
STATE_BEFORE = {"lock": RUNNING, "checkpoint": LOCKED, "restore": CHECKPOINTED, "unlock": LOCKED}
MUCH_LATER_S = 10.0  # on a machine that is busy with other things
STATE_AFTER = {"lock": LOCKED, "checkpoint": CHECKPOINTED, "restore": LOCKED, "unlock": RUNNING}


@pytest.fixture
def agent(node: MockNode) -> MockProcess:
    agent = node.process(device=None)
    agent.ok.cuInit(0)
    return agent


def begin(agent: MockProcess, op: str, pid: int) -> Pending:
    arguments = (pid,) if op == "get-state" else (pid, None)
    return agent.begin("cuCheckpointProcessGetState" if op == "get-state" else CALLS[op], *arguments)


def ask(agent: MockProcess, op: str, pid: int) -> CUresult:
    return CUresult(begin(agent, op, pid).result()[0])


def bring_before(agent: MockProcess, op: str, target: MockProcess) -> None:
    for step in BEFORE.get(op, []):
        assert ask(agent, step, target.pid) == SUCCESS


# ---- fail


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_failing_call(node: MockNode, agent: MockProcess, op: str, when: str) -> None:
    target = node.process()
    bring_before(agent, op, target)
    node.inject("fail", f"op={op}", "code=CUDA_ERROR_UNKNOWN", f"when={when}", "times=1")
    assert ask(agent, op, target.pid) == CUresult.CUDA_ERROR_UNKNOWN
    assert state_of(agent, target.pid) == (STATE_BEFORE if when == "before" else STATE_AFTER)[op]
    if when == "before":
        assert ask(agent, op, target.pid) == SUCCESS


def test_failing_state_query_and_allocation_and_init(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    node.inject("fail", "op=get-state", "code=801", "times=1")
    assert agent.code.cuCheckpointProcessGetState(target.pid) == CUresult.CUDA_ERROR_NOT_SUPPORTED
    node.inject("fail", "op=alloc", "code=2", "times=2")
    assert [target.code.cuMemAlloc(16) for _ in range(3)] == [OUT_OF_MEMORY, OUT_OF_MEMORY, SUCCESS]
    node.inject("fail", "op=init", "code=CUDA_ERROR_NO_DEVICE", "times=1")
    newcomer = node.process(device=None)
    assert newcomer.code.cuInit(0) == CUresult.CUDA_ERROR_NO_DEVICE


def test_flake_comes_with_its_probability_and_its_seed_repeats_it(node: MockNode, agent: MockProcess) -> None:
    target = node.process()

    def rounds() -> list[CUresult]:
        number = node.inject("fail", "op=lock", "p=0.25", "seed=7")
        codes = []
        for _ in range(200):
            codes.append(ask(agent, "lock", target.pid))
            if codes[-1] == SUCCESS:
                assert ask(agent, "unlock", target.pid) == SUCCESS
        node.clear(number)
        return codes

    first = rounds()
    assert set(first) == {SUCCESS, FLAKE}
    assert 25 <= first.count(FLAKE) <= 80
    assert rounds() == first
    assert ask(agent, "lock", target.pid) == SUCCESS  # cleared


def test_fault_of_one_pid_spares_the_others(node: MockNode, agent: MockProcess) -> None:
    first, second = node.process(), node.process()
    node.inject("fail", "op=lock", f"pid={second.pid}")
    assert ask(agent, "lock", first.pid) == SUCCESS
    assert ask(agent, "lock", second.pid) == FLAKE


def test_fault_of_the_nth_process_only(node: MockNode, agent: MockProcess) -> None:
    targets = [node.process() for _ in range(4)]
    node.inject("fail", "op=checkpoint", "nth=3")
    for target in targets:
        assert ask(agent, "lock", target.pid) == SUCCESS
    codes = [ask(agent, "checkpoint", target.pid) for target in targets]
    assert codes == [SUCCESS, SUCCESS, FLAKE, SUCCESS]
    assert ask(agent, "checkpoint", targets[2].pid) == FLAKE  # still the third


def test_fault_of_one_device(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x1MiB")
    agent, first, second = node.process(device=None), node.process(device=0), node.process(device=1)
    agent.ok.cuInit(0)
    node.inject("fail", "op=lock", "device=1")
    assert ask(agent, "lock", first.pid) == SUCCESS
    assert ask(agent, "lock", second.pid) == FLAKE


def test_failure_that_leaves_the_process_failed(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    bring_before(agent, "checkpoint", target)
    node.inject("fail", "op=checkpoint", "leaves-failed", "times=1")
    assert ask(agent, "checkpoint", target.pid) == FLAKE
    assert state_of(agent, target.pid) == FAILED
    for op in CALLS:
        assert ask(agent, op, target.pid) == ILLEGAL_STATE


# ---- hang


@pytest.mark.parametrize("op", [*CALLS, "get-state"])
@pytest.mark.parametrize("side", ["caller", "target"])
def test_hanging_call_goes_on_when_the_fault_is_cleared(node: MockNode, agent: MockProcess, op: str, side: str) -> None:
    target = node.process()
    bring_before(agent, op, target)
    number = node.inject("hang", f"op={op}", f"side={side}")
    hanging = begin(agent, op, target.pid)
    assert hanging.is_blocked_for(0.15)
    node.clear(number)
    assert hanging.result(timeout_s=5)[0] == SUCCESS
    if op != "get-state":
        assert state_of(agent, target.pid) == STATE_AFTER[op]


def test_hang_ends_by_itself_after_its_time(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    node.inject("hang", "op=lock", "for=0.2", "times=1")
    started = time.monotonic()
    assert ask(agent, "lock", target.pid) == SUCCESS
    assert 0.2 <= time.monotonic() - started < MUCH_LATER_S


def test_state_can_be_asked_while_a_lock_hangs_in_the_target(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    node.inject("hang", "op=lock")
    hanging = agent.thread("locker").begin("cuCheckpointProcessLock", target.pid, None)
    assert hanging.is_blocked_for(0.1)
    assert state_of(agent, target.pid) == RUNNING
    target.ok.cuMemAlloc(16)


def test_killed_caller_of_a_hanging_call_leaves_it_hanging(node: MockNode, agent: MockProcess) -> None:
    target, caller = node.process(), node.process(device=None)
    caller.ok.cuInit(0)
    number = node.inject("hang", "op=lock", "times=1")
    assert begin(caller, "lock", target.pid).is_blocked_for(0.1)
    caller.kill()
    second = begin(agent, "lock", target.pid)
    assert second.is_blocked_for(0.1)  # behind the first, as nothing cancels it
    node.clear(number)
    assert second.result()[0] == ILLEGAL_STATE  # the first has locked it
    assert state_of(agent, target.pid) == LOCKED


def test_killed_target_ends_its_hang(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    node.inject("hang", "op=lock", "side=caller")
    hanging = begin(agent, "lock", target.pid)
    assert hanging.is_blocked_for(0.1)
    target.kill()
    assert hanging.result(timeout_s=5)[0] != SUCCESS


def test_state_query_that_hangs_while_a_sibling_is_locked(node: MockNode, agent: MockProcess) -> None:
    first, second = node.process(), node.process()
    node.inject("hang", "op=get-state", "sibling-locked")
    assert state_of(agent, first.pid) == RUNNING
    assert ask(agent, "lock", second.pid) == SUCCESS
    asker = agent.thread("asker")
    hanging = asker.begin("cuCheckpointProcessGetState", first.pid)
    assert hanging.is_blocked_for(0.15)
    assert state_of(agent, second.pid) == LOCKED  # its own sibling is not locked
    node.clear()
    assert hanging.result() == (SUCCESS, int(RUNNING))


# ---- restore


def test_restore_out_of_memory_leaves_failed_for_ever(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    target.ok.cuMemAlloc(64 * KIB)
    bring_before(agent, "restore", target)
    node.inject("restore-oom")
    waiting = target.begin("cuMemGetInfo")
    assert ask(agent, "restore", target.pid) == OUT_OF_MEMORY
    assert state_of(agent, target.pid) == FAILED
    assert waiting.result()[0] != SUCCESS
    for op in CALLS:
        assert ask(agent, op, target.pid) == ILLEGAL_STATE
    assert target.code.cuMemAlloc(16) != SUCCESS
    other = node.process()
    other.ok.cuMemAlloc(MIB)  # it holds nothing on the device


def test_one_random_byte_is_corrupted_in_a_restore(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    pointer = target.ok.cuMemAlloc(256 * KIB)
    content = bytes(range(256)) * KIB
    target.ok.cuMemcpyHtoD(pointer, target.host(content), len(content))
    node.inject("corrupt", "seed=3")
    for expected in (1, 0):  # it strikes once
        bring_before(agent, "restore", target)
        assert ask(agent, "restore", target.pid) == SUCCESS
        assert ask(agent, "unlock", target.pid) == SUCCESS
        back = target.host(len(content))
        target.ok.cuMemcpyDtoH(back, pointer, len(content))
        got = target.peek(back, len(content))
        assert sum(one != other for one, other in zip(got, content, strict=True)) == expected
        target.ok.cuMemcpyHtoD(pointer, target.host(content), len(content))


# ---- slow


def test_speeds_and_least_times(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    target.ok.cuMemsetD8(target.ok.cuMemAlloc(MIB), 1, MIB)
    node.inject("speed", "out=0.010", "in=0.005")  # GB/s: 1 MiB takes 0.105 s and 0.21 s
    node.inject("slow", "lock=0.1")
    took = {}
    for op in ("lock", "checkpoint", "restore"):
        started = time.monotonic()
        assert ask(agent, op, target.pid) == SUCCESS
        took[op] = time.monotonic() - started
    assert took["lock"] >= 0.1
    assert took["checkpoint"] >= 0.1
    assert took["restore"] >= 0.2
    assert sum(took.values()) < MUCH_LATER_S


def test_slow_operations(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    node.inject("slow", "checkpoint=0.15", "restore=0.1")
    bring_before(agent, "checkpoint", target)
    started = time.monotonic()
    assert ask(agent, "checkpoint", target.pid) == SUCCESS
    assert ask(agent, "restore", target.pid) == SUCCESS
    assert 0.25 <= time.monotonic() - started < MUCH_LATER_S


def test_slow_initialisation(node: MockNode) -> None:
    node.inject("set", "init-delay=0.2")
    started = time.monotonic()
    node.process()
    assert 0.2 <= time.monotonic() - started < MUCH_LATER_S


# ---- device lost


def test_lost_device_fails_every_call_that_touches_it(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x1MiB")
    on_lost, on_sound, monitor = node.process(device=0), node.process(device=1), node.process(device=None)
    monitor.nvmlInit()
    handles = [monitor.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
    pointer = on_lost.ok.cuMemAlloc(16)
    kernels = Kernels(on_lost)
    node.inject("device-lost", "device=0")
    assert on_lost.code.cuMemAlloc(16) != SUCCESS
    assert on_lost.code.cuMemcpyDtoH(on_lost.host(16), pointer, 16) != SUCCESS
    assert kernels.begin_busy(10).result()[0] != SUCCESS
    assert on_lost.code.cuCtxSynchronize() != SUCCESS
    assert on_sound.code.cuMemAlloc(16) == SUCCESS
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        monitor.nvmlDeviceGetMemoryInfo(handles[0])
    assert monitor.nvmlDeviceGetMemoryInfo(handles[1])["total"] == MIB
    newcomer = node.process(device=None)
    newcomer.ok.cuInit(0)
    assert newcomer.code.cuDevicePrimaryCtxRetain(0) != SUCCESS
    node.inject("device-lost", "device=0", "code=0")
    assert on_lost.code.cuMemAlloc(16) == SUCCESS


# ---- NVML


def listed(monitor: MockProcess) -> dict[int, int | None]:
    processes = monitor.nvmlDeviceGetComputeRunningProcesses(monitor.nvmlDeviceGetHandleByIndex(0))
    return {process["pid"]: process["usedGpuMemory"] for process in processes}


def test_process_without_memory_figures_and_hidden_process(node: MockNode) -> None:
    first, second, monitor = node.process(), node.process(), node.process(device=None)
    monitor.nvmlInit()
    first.ok.cuMemAlloc(4 * KIB)
    node.inject("no-memory-figures", f"pid={first.pid}")
    assert listed(monitor) == {first.pid: None, second.pid: 0}
    node.inject("hide-process", f"pid={second.pid}")
    assert listed(monitor) == {first.pid: None}
    assert monitor.nvmlDeviceGetMemoryInfo(monitor.nvmlDeviceGetHandleByIndex(0))["used"] == 4 * KIB
    node.clear()
    assert listed(monitor) == {first.pid: 4 * KIB, second.pid: 0}


# ---- the command


@pytest.mark.parametrize(
    "words",
    [
        [], ["nonsense"], ["fail"], ["fail", "op=nonsense"], ["fail", "op=lock", "code=CUDA_ERROR_NONSENSE"],
        ["fail", "op=lock", "p=2"], ["fail", "op=lock", "device=7"], ["fail", "op=lock", "pid=4194301"],
        ["fail", "op=lock", "nth=0"], ["fail", "op=lock", "times=x"], ["slow", "sleep=3"], ["set", "colour=1"],
        ["device-lost", "device=9"], ["hang", "op=lock", "side=middle"],
    ],
)  # fmt: skip
def test_bad_words_are_refused_with_one_line(node: MockNode, agent: MockProcess, words: list[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        node.control("inject", *words)
    assert caught.value.returncode != 0
    assert len(caught.value.stderr.strip().splitlines()) == 1
    target = node.process()
    assert ask(agent, "lock", target.pid) == SUCCESS  # nothing was injected


def test_fault_that_struck_stands_in_the_journal(node: MockNode, agent: MockProcess) -> None:
    target = node.process()
    node.inject("fail", "op=lock", "times=1")
    ask(agent, "lock", target.pid)
    [line] = [line for line in node.journal() if line["kind"] == "fault"]
    assert (line["pid"], line["name"], line["result"]) == (target.pid, "fail", int(FLAKE))
