"""Jobs that save themselves, on the whole path: by callbacks alone, beside jobs of the driver, and when they fail."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from calls import Caller, has_condition, held_by, waiting
from machine import Machine
from timeslice.snapshot_agent import register_workload
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2

MIB = 1 << 20


class Device:
    """What the callbacks of jobs put on it and take off it again: holds one at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on_it: set[str] = set()
        self.history: list[str] = []
        self.problems: list[str] = []

    def change(self, what: str, job: str, others: set[str]) -> None:
        with self.lock:
            self.history.append(f"{what} {job}")
            if others:
                self.problems.append(f"{what} {job} while {sorted(others)} is on the device")

    def put(self, job: str) -> None:
        self.change("put", job, self.on_it - {job})
        self.on_it.add(job)

    def take(self, job: str) -> None:
        self.change("take", job, self.on_it - {job})
        self.on_it.discard(job)


class Job:
    """A job of callbacks: has its state on the device, or in host memory."""

    def __init__(self, machine: Machine, device: Device, name: str) -> None:
        self.machine, self.device, self.name = machine, device, name
        self.modes: list[str] = []
        self.fail: BaseException | None = None
        self.slow: Callable[[], object] = lambda: None
        self.client = machine.client(name)

    def register(self, **fields: object) -> None:
        self.device.put(self.name)
        handle = register_workload(
            self.machine.node.address, self.name, "g",
            on_snapshot=self.snapshot, on_restore=self.restore, **fields,  # type: ignore[arg-type]
        )  # fmt: skip
        self.machine.at_end(handle.close)

    def snapshot(self, mode: str, tags: list[str]) -> None:
        self.modes.append(mode)
        self.slow()
        if self.fail is not None:
            raise self.fail
        self.device.take(self.name)

    def restore(self, tags: list[str]) -> None:
        self.slow()
        if self.fail is not None:
            raise self.fail
        self.device.put(self.name)

    def work(self) -> None:
        assert self.name in self.device.on_it, f"{self.name} has its turn and is not on the device"


def test_two_jobs_without_processes_take_turns_by_callbacks_alone(tmp_path: Path) -> None:
    turns = 5
    with Machine(tmp_path) as machine:
        device = Device()

        def train(name: str) -> None:
            job = Job(machine, device, name)
            for turn in range(turns):
                with job.client.on_accelerators(timeout_sec=30):
                    if turn == 0:
                        job.register()
                    job.work()
                    if device.on_it != {name}:
                        device.problems.append(f"{name} in turn {turn} beside {sorted(device.on_it)}")

        for caller in [Caller(train, name) for name in "ab"]:
            caller.wait(60)
        assert device.problems == []
        assert device.history.count("take a") >= turns - 1
        assert machine.status().group.handoffs_total >= 2 * turns - 2


def test_job_of_the_driver_and_job_of_callbacks_take_turns(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        driven, device = machine.client("driven"), Device()
        own = Job(machine, device, "own")
        driven.acquire(timeout_sec=20)
        process = machine.process("driven")
        written = process.call("alloc", "weights", 20 * MIB, 1)
        next_one = Caller(own.client.acquire, timeout_sec=30)
        machine.wait_for(waiting("own"))
        driven.release()
        next_one.wait()
        own.register()
        for _ in range(3):
            next_one = Caller(driven.acquire, timeout_sec=30)
            machine.wait_for(waiting("driven"))
            own.client.release()
            assert next_one.wait().context_restored
            assert device.on_it == set()
            assert process.call("digest", "weights") == written
            next_one = Caller(own.client.acquire, timeout_sec=30)
            machine.wait_for(waiting("own"))
            driven.release()
            assert next_one.wait().context_restored
            own.work()
        [status] = [state for state in machine.status().agent_job_states if state.job_id == "driven"]
        assert status.job_state == status.STATE_SAVED
        assert device.problems == []


def test_what_a_job_drops_is_told_to_it_with_its_next_turn(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        device = Device()
        job, other = Job(machine, device, "job"), machine.client("other")
        assert job.client.acquire(timeout_sec=20).discarded_tags == ()
        job.register(default_mode="discard", tags=["weights", "kv_cache"])
        waits = Caller(other.acquire, timeout_sec=30)
        machine.wait_for(waiting("other"))
        job.client.release()
        assert waits.wait().discarded_tags == ()
        assert job.modes == ["discard"]
        waits = Caller(job.client.acquire, timeout_sec=30)
        machine.wait_for(waiting("job"))
        other.release()
        again = waits.wait()
        assert (again.context_restored, again.discarded_tags) == (True, ("weights", "kv_cache"))
        job.client.release()
        assert job.client.acquire(timeout_sec=20).discarded_tags == (), "it has filled again what it had dropped"


def test_workload_that_registers_before_its_turn_is_taken_off_before_another_gets_the_group(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        device = Device()
        early, other = Job(machine, device, "early"), machine.client("other")
        early.register()
        machine.wait_for(has_condition("Intruder", "early"))
        other.acquire(timeout_sec=20)
        assert device.on_it == set()
        [condition] = [c for c in [*machine.status().group.conditions, None] if c is None or c.type == "Intruder"]
        assert condition is None
        waits = Caller(early.client.acquire, timeout_sec=30)
        machine.wait_for(waiting("early"))
        other.release()
        assert waits.wait().context_restored
        early.work()


def test_job_that_cannot_be_saved_blocks_the_group_in_its_own_words_and_runs_on(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        device = Device()
        stubborn, other = Job(machine, device, "stubborn"), machine.client("other")
        stubborn.client.acquire(timeout_sec=20)
        stubborn.register()
        stubborn.fail = RuntimeError("the queue is not empty")
        waits = Caller(other.acquire, timeout_sec=40)
        machine.wait_for(waiting("other"))
        stubborn.client.release()
        group = machine.wait_for(has_condition("Blocked", "stubborn"))
        [condition] = [c for c in group.conditions if c.type == "Blocked"]
        assert "RuntimeError: the queue is not empty" in condition.reason
        assert len(stubborn.modes) == 3
        stubborn.client.acquire(timeout_sec=20)
        stubborn.work()
        stubborn.fail = None
        stubborn.client.release()
        assert waits.wait().success
        assert device.on_it == set()


def test_slow_callback_is_waited_for_and_counts_when_it_ends(tmp_path: Path) -> None:
    with Machine(tmp_path, orchestrator_flags=("--operation-timeout-s", "0.3")) as machine:
        device, may_end = Device(), threading.Event()
        slow, other = Job(machine, device, "slow"), machine.client("other")
        slow.client.acquire(timeout_sec=20)
        slow.register()
        slow.slow = may_end.wait
        waits = Caller(other.acquire, timeout_sec=40)
        machine.wait_for(waiting("other"))
        slow.client.release()
        machine.wait_for(has_condition("Indeterminate", "slow"))
        assert waits.blocks
        may_end.set()
        assert waits.wait().success
        assert device.on_it == set()
        assert len(slow.modes) == 1, "it is not asked a second time while nobody knows"


WORKLOAD = """
import sys
from timeslice.snapshot_agent import register_workload

def on_snapshot(mode, tags):
    print("asked", flush=True)
    sys.stdin.readline()

register_workload(sys.argv[1], sys.argv[2], "g", on_snapshot=on_snapshot, on_restore=print)
print("registered", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["between its turns", "while it is asked", "by an operator while it hangs"])
def test_workload_that_dies_makes_way(tmp_path: Path, how: str) -> None:
    with Machine(tmp_path) as machine:
        dying, other = machine.client("dying"), machine.client("other")
        dying.acquire(timeout_sec=20)
        command = [sys.executable, "-c", WORKLOAD, machine.node.address, "dying"]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=machine.node.env) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "registered\n"
            waits = Caller(other.acquire, timeout_sec=30)
            machine.wait_for(waiting("other"))
            if how == "between its turns":
                process.kill()
                process.wait()
                dying.release()
            else:
                dying.release()
                assert process.stdout.readline() == "asked\n"
            if how == "while it is asked":
                process.kill()
            elif how == "by an operator while it hangs":
                with machine.stub() as stub:
                    kill = orchestrator_pb2.EvictRequest.ACTION_KILL
                    stub.Evict(orchestrator_pb2.EvictRequest(group_id="g", job_id="dying", action=kill), timeout=10)
                assert process.wait(20) == -signal.SIGKILL
        assert waits.wait().success


def test_restart_of_the_agent_in_the_middle_of_a_callback_costs_nothing(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        device, begun, may_end = Device(), threading.Event(), threading.Event()
        job, other = Job(machine, device, "job"), machine.client("other")
        job.client.acquire(timeout_sec=20)
        job.register()
        job.slow = lambda: (begun.set(), may_end.wait())
        waits = Caller(other.acquire, timeout_sec=40)
        machine.wait_for(waiting("other"))
        job.client.release()
        assert begun.wait(20)
        machine.node.agent.kill()
        machine.node.agent.start()
        may_end.set()
        assert waits.wait(40).success
        assert device.history == ["put job", "take job"]
        job.slow = lambda: None
        again = Caller(job.client.acquire, timeout_sec=40)
        machine.wait_for(waiting("job"))
        other.release()
        assert again.wait(40).context_restored
        job.work()
        assert held_by("job")(machine.status().group)
