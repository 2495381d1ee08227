"""Rows of docs/design/failures.md on the whole path: real orchestrator, agent, jobs, and the GPU mock's faults."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from calls import SWITCHING, Caller, has_condition, held_by, waiting
from device_truth import overlaps_of_unlocked_work
from machine import DeviceProcess, Machine
from timeslice.orchestrator.exceptions import OrchestratorError, OrchestratorTimeoutError
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path, orchestrator_flags=("--blocked-retry-s", "3")) as made:
        yield made


def holder_with_contents(machine: Machine, job: str, seed: int = 1) -> tuple[Any, DeviceProcess, str]:
    """A job that holds the group and has written more than half of the device."""
    client = machine.client(job)
    client.acquire(timeout_sec=20)
    process = machine.process(job)
    return client, process, process.call("alloc", "weights", 20 * MIB, seed)


def test_row_1_killed_holder_frees_the_group_at_once(machine: Machine) -> None:
    whole_job = machine.process("a")
    whole_job.call("join", machine.address, "a", "g")
    whole_job.call("acquire", 20)
    whole_job.call("alloc", "weights", 20 * MIB, 1)
    next_one = Caller(machine.client("b").acquire, timeout_sec=25)
    machine.wait_for(waiting("b"))
    killed_at = time.monotonic()
    whole_job.kill()
    assert next_one.wait().success
    assert next_one.ended_at - killed_at < 5, "well before a session's 30 s"


def test_row_2_waiter_that_gave_up_is_never_granted(machine: Machine) -> None:
    holder, *_ = holder_with_contents(machine, "a")
    with pytest.raises(OrchestratorTimeoutError):
        machine.client("b").acquire(timeout_sec=0.3)
    assert not machine.status().group.waiters
    third = Caller(machine.client("c").acquire, timeout_sec=20)
    machine.wait_for(waiting("c"))
    holder.release()
    assert third.wait().success
    assert machine.status().group.locking_job == "c"


def test_row_4_late_yield_of_an_earlier_lease_changes_nothing(machine: Machine) -> None:
    with machine.stub() as stub:
        first = stub.Acquire(orchestrator_pb2.AcquireRequest(job_id="a", group_id="g", request_id="1"), timeout=10)
        token = first.leases[0].fencing_token
        given_back = orchestrator_pb2.YieldRequest(job_id="a", group_id="g", fencing_token=token)
        answer = stub.Yield(given_back, timeout=10)
        stub.Acquire(orchestrator_pb2.AcquireRequest(job_id="b", group_id="g", request_id="2"), timeout=10)
        assert stub.Yield(given_back, timeout=10) == answer
        assert machine.status().group.locking_job == "b"


def test_row_6_and_7_jobs_without_a_context_come_and_go(machine: Machine) -> None:
    for job in ("a", "b", "a"):
        client = machine.client(job)
        assert not client.acquire(timeout_sec=10).context_restored
        client.release()
    holder, process, _ = holder_with_contents(machine, "c")
    process.kill()
    holder.release()
    assert machine.client("a").acquire(timeout_sec=10).success


def test_row_8_yield_by_another_job_is_refused(machine: Machine) -> None:
    holder_with_contents(machine, "a")
    with pytest.raises(OrchestratorError) as refused:
        machine.client("b").release()
    assert refused.value.code == "PERMISSION_DENIED"
    assert machine.status().group.locking_job == "a"


def test_row_10_driver_that_fails_once_is_asked_again(machine: Machine) -> None:
    holder, process, written = holder_with_contents(machine, "a")
    machine.node.gpu_mock("inject", "fail", "op=checkpoint", "code=3", "times=1")
    other = Caller(machine.client("b").acquire, timeout_sec=25)
    machine.wait_for(waiting("b"))
    holder.release()
    assert other.wait().success
    back = Caller(holder.acquire, timeout_sec=25)
    machine.client("b").release()
    assert back.wait().context_restored
    assert process.call("digest", "weights") == written


def test_row_11_job_that_cannot_be_saved_blocks_the_group_and_is_named(machine: Machine) -> None:
    b, b_process, b_written = holder_with_contents(machine, "b")
    b.release()
    a, a_process, a_written = holder_with_contents(machine, "a")
    machine.node.gpu_mock("inject", "fail", "op=checkpoint", "code=801")
    waiter = Caller(b.acquire, timeout_sec=90)
    machine.wait_for(waiting("b"))
    a.release()
    blocked = machine.wait_for(has_condition("Blocked"), timeout_s=45)
    assert [list(c.jobs) for c in blocked.conditions if c.type == "Blocked"] == [["a"]]
    assert waiter.blocks
    assert a_process.call("digest", "weights") == a_written, "it runs on"
    machine.node.gpu_mock("inject", "--clear")
    assert waiter.wait(60).success
    assert b_process.call("digest", "weights") == b_written


def test_row_11_job_that_cannot_be_saved_stays_locked_beside_one_that_fits(machine: Machine) -> None:
    a, process, written = holder_with_contents(machine, "a")
    machine.node.gpu_mock("inject", "fail", "op=checkpoint", "code=801")
    b = machine.client("b")
    waiter = Caller(b.acquire, timeout_sec=60)
    machine.wait_for(waiting("b"))
    a.release()
    assert waiter.wait().success
    process.send("digest", "weights")
    back = Caller(a.acquire, timeout_sec=60)
    machine.wait_for(waiting("a"))
    assert not process.has_replied(), "locked while another job holds the group"
    b.release()
    assert back.wait().success
    assert process.reply() == written


def test_row_11_job_that_cannot_be_saved_is_killed_where_the_policy_says_so(tmp_path: Path) -> None:
    flags = ("--on-unsaveable", "kill", "--kill-grace-s", "1")
    with Machine(tmp_path, orchestrator_flags=flags) as machine:
        b, b_process, b_written = holder_with_contents(machine, "b")
        b.release()
        c, c_process, c_written = holder_with_contents(machine, "c", seed=2)
        c.release()
        a, a_process, _ = holder_with_contents(machine, "a", seed=3)
        a_second = machine.process("a")
        machine.node.gpu_mock("inject", "fail", "op=checkpoint", "code=801", f"pid={a_process.pid}")
        waiter = Caller(b.acquire, timeout_sec=60)
        machine.wait_for(waiting("b"))
        a.release()
        granted = waiter.wait(30)
        assert (granted.success, granted.context_restored) == (True, True)
        for process in (a_process, a_second):
            assert process.process.wait(5) == -signal.SIGKILL
        assert b_process.call("digest", "weights") == b_written
        assert not machine.status().group.conditions
        b.release()
        assert c.acquire(timeout_sec=30).context_restored
        assert c_process.call("digest", "weights") == c_written
        assert b_process.process.poll() is None
        told = [json.loads(line) for line in machine.orchestrator.log.read_text().splitlines() if '"kind"' in line]
        at = {e["kind"]: datetime.fromisoformat(e["t"]) for e in told if e["kind"] in ("blocked", "killed")}
        assert 0.99 < (at["killed"] - at["blocked"]).total_seconds() < 10, "after the grace"


def test_row_11_blocking_job_is_killed_by_an_operator(machine: Machine) -> None:
    b, b_process, b_written = holder_with_contents(machine, "b")
    b.release()
    a, a_process, _ = holder_with_contents(machine, "a")
    machine.node.gpu_mock("inject", "hang", "op=checkpoint", f"pid={a_process.pid}")
    waiter = Caller(b.acquire, timeout_sec=60)
    machine.wait_for(waiting("b"))
    a.release()
    machine.wait_for(lambda group: group.group_state == SWITCHING)
    evict = orchestrator_pb2.EvictRequest(
        group_id="g", job_id="a", action=orchestrator_pb2.EvictRequest.ACTION_KILL, reason="its checkpoint hangs"
    )
    with machine.stub() as stub:
        [action] = stub.Evict(evict, timeout=5).actions
    assert str(a_process.pid) in action
    assert a_process.process.wait(5) == -signal.SIGKILL
    assert waiter.wait(30).context_restored
    assert b_process.call("digest", "weights") == b_written
    log = machine.node.agent.log.read_text()
    assert "killed on request (its checkpoint hangs)" in log


@pytest.mark.parametrize("operation", ["checkpoint", "restore"])
def test_row_15_agent_killed_in_the_middle_of_an_operation(machine: Machine, operation: str) -> None:
    a, process, written = holder_with_contents(machine, "a")
    b = machine.client("b")
    taking = Caller(b.acquire, timeout_sec=40)
    machine.wait_for(waiting("b"))
    if operation == "restore":
        a.release()
        taking.wait()
        b_process = machine.process("b")
        b_process.call("alloc", "weights", 20 * MIB, 2)
        taking = Caller(a.acquire, timeout_sec=40)
        machine.wait_for(waiting("a"))
    machine.node.gpu_mock("inject", "slow", f"{operation}=1")
    (b if operation == "restore" else a).release()
    machine.wait_for(lambda group: group.group_state == SWITCHING)
    machine.node.agent.kill()
    machine.node.agent.start()
    assert taking.wait(60).success
    if operation == "checkpoint":
        again = Caller(a.acquire, timeout_sec=40)
        b.release()
        again.wait(60)
    assert process.call("digest", "weights") == written


def test_row_18_orchestrator_killed_with_holder_switch_and_waiters(machine: Machine) -> None:
    a, process, written = holder_with_contents(machine, "a")
    b, c = machine.client("b"), machine.client("c")
    second = Caller(b.acquire, timeout_sec=60)
    machine.wait_for(waiting("b"))
    third = Caller(c.acquire, timeout_sec=60)
    machine.wait_for(waiting("b", "c"))
    machine.node.gpu_mock("inject", "slow", "checkpoint=1")
    a.release()
    machine.wait_for(lambda group: group.group_state == SWITCHING)
    before = machine.status().group.lease.fencing_token
    machine.orchestrator.kill()
    machine.orchestrator.start()
    started = time.monotonic()
    machine.status()
    assert time.monotonic() - started < 1
    assert second.wait(60).success
    assert machine.status().group.lease.fencing_token > before
    assert third.blocks, "the old order is kept"
    b.release()
    assert third.wait(60).success
    back = Caller(a.acquire, timeout_sec=60)
    c.release()
    assert back.wait(60).success
    assert process.call("digest", "weights") == written


def test_row_18_holder_goes_on_through_a_restart_of_the_orchestrator(machine: Machine) -> None:
    a, process, written = holder_with_contents(machine, "a")
    token = machine.status().group.lease.fencing_token
    machine.orchestrator.kill()
    process.call("busy", 1_000)
    machine.orchestrator.start()
    assert machine.wait_for(held_by("a")).lease.fencing_token == token
    a.release()
    assert process.call("digest", "weights") == written


def test_row_38_agent_restarts_while_a_job_is_saved(machine: Machine) -> None:
    a, process, written = holder_with_contents(machine, "a")
    b = machine.client("b")
    taking = Caller(b.acquire, timeout_sec=20)
    machine.wait_for(waiting("b"))
    a.release()
    taking.wait()
    machine.node.agent.kill()
    machine.node.agent.start()
    back = Caller(a.acquire, timeout_sec=40)
    machine.wait_for(waiting("a"))
    b.release()
    assert back.wait(60).context_restored
    assert process.call("digest", "weights") == written


def test_row_44_intruder_is_locked(machine: Machine) -> None:
    holder_with_contents(machine, "a")
    intruder = machine.process("b")
    intruder.send("alloc", "stolen", MIB, 3)
    machine.wait_for(has_condition("Intruder", "b"), timeout_s=10)


def test_row_9_hanging_lock_is_rolled_back_and_the_job_runs_on(machine: Machine) -> None:
    a, process, written = holder_with_contents(machine, "a")
    os.kill(process.pid, signal.SIGSTOP)
    waiter = Caller(machine.client("b").acquire, timeout_sec=60)
    machine.wait_for(waiting("b"))
    a.release()
    try:
        machine.wait_for(has_condition("Blocked"), timeout_s=60)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert waiter.wait(60).success
    assert written


def test_memory_taken_and_yielded_before_the_agent_has_looked_is_saved(machine: Machine) -> None:
    """The agent samples devices four times a second; a turn can be shorter than that."""
    b, b_process, b_written = holder_with_contents(machine, "b", 2)
    b.release()
    a = machine.client("a")
    a.acquire(timeout_sec=20)
    process = machine.process("a")
    waiter = Caller(b.acquire, timeout_sec=20)
    machine.wait_for(waiting("b"))
    written = process.call("alloc", "weights", 20 * MIB, 1)
    a.release()
    assert waiter.wait().success
    assert b_process.call("digest", "weights") == b_written
    back = Caller(a.acquire, timeout_sec=20)
    machine.wait_for(waiting("a"))
    b.release()
    back.wait()
    assert process.call("digest", "weights") == written


def test_no_device_time_without_a_lease(machine: Machine) -> None:
    """The mock's journal, not what the agents say, against who held the group."""
    held: list[tuple[int, int, int]] = []
    guard = threading.Lock()

    def work(job: str, seed: int) -> None:
        client = machine.client(job)
        process: DeviceProcess | None = None
        for _ in range(4):
            client.acquire(timeout_sec=30)
            begin = time.monotonic_ns()
            if process is None:
                process = machine.process(job)
                process.call("alloc", "weights", 20 * MIB, seed)
            process.call("busy", 20_000)
            with guard:
                held.append((process.pid, begin, time.monotonic_ns()))
            client.release()

    callers = [Caller(work, job, seed) for seed, job in enumerate("ab")]
    for caller in callers:
        caller.wait(60)
    assert not overlaps_of_unlocked_work(machine.node.journal(), held)
