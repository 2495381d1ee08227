"""Row 41: two processes of one job acquire the same group. One lease; both told so; the owner's Yield hands it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calls import Caller, held_by, waiting
from device_truth import WORK
from machine import DeviceProcess, Machine

MIB = 1 << 20
SECONDS = 1_000_000
"""Microseconds, which is what a kernel's length is stated in."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path) as made:
        yield made


def two_processes(machine: Machine) -> tuple[DeviceProcess, DeviceProcess, list[str]]:
    """Two processes of job a that hold the group, the first as its owner, and what each wrote to the device."""
    written = []
    processes = [machine.process("a"), machine.process("a")]
    for seed, process in enumerate(processes):
        process.call("join", machine.address, "a", "g")
        process.call("acquire", 20)
        written.append(process.call("alloc", "weights", 8 * MIB, seed))
    return processes[0], processes[1], written


def test_second_process_that_yields_first_takes_nothing_from_the_one_that_still_computes(machine: Machine) -> None:
    owner, second, (written, _) = two_processes(machine)
    assert machine.status().group.lease.attached == 2
    next_one = Caller(machine.client("b").acquire, timeout_sec=30)
    machine.wait_for(waiting("b"))
    owner.send("busy", SECONDS // 2)
    second.call("release")
    status = machine.wait_for(lambda group: group.lease.attached == 1)
    assert held_by("a")(status)
    assert waiting("b")(status)
    owner.reply()
    assert owner.call("digest", "weights") == written
    assert next_one.blocks
    owner.call("release")
    assert next_one.wait().success


def test_owner_that_yields_first_hands_on_only_what_the_other_cannot_touch_any_more(machine: Machine) -> None:
    owner, second, (_, written) = two_processes(machine)
    next_client = machine.client("b")
    next_one = Caller(next_client.acquire, timeout_sec=30)
    machine.wait_for(waiting("b"))
    second.send("busy", SECONDS // 2)
    owner.call("release")
    assert next_one.wait().success
    second.reply()
    next_process = machine.process("b")
    contents = next_process.call("alloc", "weights", 20 * MIB, 7)
    second.send("digest", "weights")  # frozen in the middle of its work, it goes on there at its job's next turn
    next_process.call("busy", SECONDS // 4)
    assert next_process.call("digest", "weights") == contents
    assert not second.has_replied()
    next_client.release()
    owner.call("acquire", 20)
    assert second.reply() == written
    assert overlaps(machine.node.journal(), {owner.pid, second.pid}, {next_process.pid}) == []
    with pytest.raises(RuntimeError, match="OrchestratorLeaseLostError"):  # it is told that its first lease is over
        second.call("release")


def test_killed_owner_leaves_the_lease_to_the_other_process(machine: Machine) -> None:
    owner, second, (_, written) = two_processes(machine)
    next_one = Caller(machine.client("b").acquire, timeout_sec=60)
    machine.wait_for(waiting("b"))
    first_owner = machine.status().group.lease.owner_session_id
    owner.kill()
    status = machine.wait_for(lambda group: group.lease.attached == 1, timeout_s=60)
    assert status.lease.owner_session_id != first_owner
    assert waiting("b")(status)
    assert second.call("digest", "weights") == written
    second.call("release")
    assert next_one.wait().success


def overlaps(journal: list[dict[str, Any]], some: set[int], others: set[int]) -> list[tuple[Any, Any]]:
    """Pairs of device work of both sides at one time."""
    work = [record for record in journal if record["kind"] in WORK]
    one = [record for record in work if record["pid"] in some]
    other = [record for record in work if record["pid"] in others]
    assert one, "the journal tells nothing of the first job"
    assert other, "the journal tells nothing of the second job"
    return [
        (a, b)
        for a in one
        for b in other
        if a["begin_ns"] < (b["end_ns"] or b["begin_ns"]) and b["begin_ns"] < (a["end_ns"] or a["begin_ns"])
    ]
