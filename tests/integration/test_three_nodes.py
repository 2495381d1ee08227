"""Row 45 of docs/design/failures.md with three real agents: a job on three nodes, of which two save and one does not.

All 125 combinations run against the core; here each outcome of the odd node is provoked once in real processes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calls import SWITCHING, Caller, waiting
from machine import DeviceProcess, Machine
from timeslice_orchestrator.v1alpha1.orchestrator_pb2 import SnapshotAgentJobState

MIB = 1 << 20
NODES = ("n0", "n1", "n2")
ODD = "n1"


def provoke(machine: Machine, outcome: str, processes: dict[str, DeviceProcess]) -> Callable[[], None]:
    """Let the odd node's snapshot end so; returns what undoes it."""
    node = machine.nodes[ODD]
    match outcome:
        case "ok":
            return lambda: None
        case "rolled back":
            node.gpu_mock("inject", "fail", "op=checkpoint", "code=801")
            return lambda: node.gpu_mock("inject", "--clear") and None
        case "indeterminate":
            node.gpu_mock("inject", "hang", "op=checkpoint")
            return lambda: node.gpu_mock("inject", "--clear") and None
        case "gone":
            node.gpu_mock("inject", "slow", "checkpoint=1")
            return lambda: None
        case "unreachable":
            node.agent.signal(signal.SIGSTOP)
            return lambda: node.agent.signal(signal.SIGCONT)
    raise AssertionError(outcome)


def on_all_nodes(machine: Machine, job: str, seed: int) -> tuple[Any, dict[str, DeviceProcess], dict[str, str]]:
    """A job that holds the group and has written more than half of each node's device."""
    client = machine.client(job)
    client.acquire(timeout_sec=20)
    processes = {node: machine.process(job, node=node) for node in NODES}
    return client, processes, {node: p.call("alloc", "weights", 20 * MIB, seed) for node, p in processes.items()}


@pytest.mark.parametrize("outcome", ["ok", "rolled back", "indeterminate", "gone", "unreachable"])
def test_row_45_no_job_runs_on_some_nodes_only(tmp_path: Path, outcome: str) -> None:
    flags = (
        "--operation-timeout-s",
        "3",
        "--lock-timeout-s",
        "2",
        "--unreachable-after-s",
        "2",
        "--blocked-retry-s",
        "3",
    )
    with Machine(tmp_path, nodes={node: {"g": "0"} for node in NODES}, orchestrator_flags=flags) as machine:
        # Both fill more than half of each device, so that neither fits beside the other.
        b, b_processes, b_written = on_all_nodes(machine, "b", seed=2)
        b.release()
        a, processes, written = on_all_nodes(machine, "a", seed=1)
        waiter = Caller(b.acquire, timeout_sec=90)
        machine.wait_for(waiting("b"))
        undo = provoke(machine, outcome, processes)
        a.release()
        if outcome == "gone":
            machine.wait_for(lambda group: group.group_state == SWITCHING)
            processes.pop(ODD).kill()
        elif outcome != "ok":
            # The switch must end in something a person can see, and b must not run while a is torn.
            machine.wait_for(lambda group: len(group.conditions) > 0, timeout_s=60)
            assert waiter.blocks
        undo()
        assert waiter.wait(90).success
        assert {node: p.call("digest", "weights") for node, p in b_processes.items()} == b_written
        back = Caller(a.acquire, timeout_sec=60)
        machine.wait_for(waiting("a"))
        b.release()
        assert back.wait(60).success
        assert {node: p.call("digest", "weights") for node, p in processes.items()} == {
            n: written[n] for n in processes
        }


def test_job_that_yields_before_the_agents_have_seen_its_memory_is_locked_everywhere_and_saved(tmp_path: Path) -> None:
    flags = ("--sample-interval-ms", "60000")  # no agent looks by itself
    nodes = {node: {"g": "0"} for node in NODES}
    with Machine(tmp_path, nodes=nodes, agent_flags=flags) as machine:
        a = machine.client("a")
        a.acquire(timeout_sec=20)
        processes = {node: machine.process("a", node=node) for node in NODES}
        written = {node: process.call("alloc", "weights", 20 * MIB, 1) for node, process in processes.items()}
        b = machine.client("b")
        next_one = Caller(b.acquire, timeout_sec=30)
        machine.wait_for(waiting("b"))
        a.release()
        assert next_one.wait().success
        saved = {s.agent: s.job_state for s in machine.status().agent_job_states if s.job_id == "a"}
        assert saved == dict.fromkeys(NODES, SnapshotAgentJobState.STATE_SAVED)
        b.release()
        assert a.acquire(timeout_sec=30).context_restored
        assert {node: process.call("digest", "weights") for node, process in processes.items()} == written
