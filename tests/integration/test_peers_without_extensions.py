"""Peers that know only the contract below number 100: their clients at our servers, our client at their orchestrator.

They are processes of their own, with stubs of that contract (llmd_stubs.py): two versions of the same protobuf package
in one process are a TypeError.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmd_stubs
from calls import Caller
from llmd_agent_process import LlmdAgent
from machine import DeviceProcess, Machine, Node
from timeslice import SnapshotAgentClient, TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError, OrchestratorTimeoutError
from timeslice.orchestrator.types import AcquireResult, GroupLockState, YieldResult
from timeslice.snapshot_agent import register_workload

HERE = Path(__file__).parent
LIMIT_S = 20.0


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llmd_stubs.generate(tmp_path_factory.mktemp("stubs"))


class Program:
    """A peer's process, spoken to in lines of JSON."""

    def __init__(self, stubs: Path, name: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / name), *arguments],
            env=llmd_stubs.environment(stubs), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def lines(self) -> Iterator[Any]:
        assert self.process.stdout is not None
        yield from map(json.loads, self.process.stdout)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(LIMIT_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


class Their:
    """A client with their stubs."""

    def __init__(self, stubs: Path) -> None:
        self._program = Program(stubs, "llmd_caller.py")
        self._numbers = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self, service: str, address: str, method: str, timeout_s: float = LIMIT_S, **fields: Any) -> Callable[
        [], dict[str, Any]
    ]:
        """Send a call; what is returned waits for its answer."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.SimpleQueue()
        stdin = self._program.process.stdin
        assert stdin is not None
        stdin.write(json.dumps([number, address, service, method, fields, timeout_s]) + "\n")
        stdin.flush()
        return lambda: answer.get(timeout=LIMIT_S)

    def call(self, service: str, address: str, method: str, **fields: Any) -> dict[str, Any]:
        """The answer's fields, as far as their contract knows them.

        Raises:
            AssertionError: the call failed; the text has code and details.
        """
        answer = self.begin(service, address, method, **fields)()
        assert "ok" in answer, answer
        return answer["ok"]  # type: ignore[no-any-return]

    def close(self) -> None:
        self._program.end()

    def _read(self) -> None:
        for number, answer in self._program.lines():
            self._answers[number].put(answer)


@pytest.fixture
def their(stubs: Path) -> Iterator[Their]:
    their = Their(stubs)
    yield their
    their.close()


# Their client, our orchestrator.


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path) as machine:
        yield machine


def test_their_clients_jobs_take_turns_and_are_restored(machine: Machine, their: Their) -> None:
    digests = {}
    for job in ("a", "b"):
        process = machine.process(job)
        granted = their.call("orchestrator", machine.address, "Acquire", job_id=job, group_id="g")
        assert granted["success"]
        assert not granted.get("context_restored")
        digests[job] = process, process.call("alloc", "weights", 20 << 20, ord(job))
        assert their.call("orchestrator", machine.address, "Yield", job_id=job, group_id="g")["success"]
    # Both together have more than the 32 MiB of the device.
    for job in ("a", "b", "a"):
        granted = their.call("orchestrator", machine.address, "Acquire", job_id=job, group_id="g")
        process, digest = digests[job]
        assert process.call("digest", "weights") == digest
        if job == "a":
            assert granted["context_restored"]
        status = their.call("orchestrator", machine.address, "GetGroupStatus", group_id="g")
        assert status["group"]["group_state"] == "STATE_LOCKED"
        assert status["group"]["locking_job"] == job
        assert {s["job_id"] for s in status["agent_job_states"]} == {"a", "b"}
        their.call("orchestrator", machine.address, "Yield", job_id=job, group_id="g")


def test_their_client_waits_in_the_queue_and_is_out_of_it_at_its_deadline(machine: Machine, their: Their) -> None:
    def group() -> dict[str, Any]:
        return their.call("orchestrator", machine.address, "GetGroupStatus", group_id="g")["group"]  # type: ignore[no-any-return]

    their.call("orchestrator", machine.address, "Acquire", job_id="a", group_id="g")
    short = their.begin("orchestrator", machine.address, "Acquire", 0.5, job_id="b", group_id="g")
    assert short()["code"] == "DEADLINE_EXCEEDED"
    machine.wait_for(lambda group: not group.waiters)
    longer = their.begin("orchestrator", machine.address, "Acquire", job_id="c", group_id="g")
    machine.wait_for(lambda group: [w.job_id for w in group.waiters] == ["c"])
    assert group()["waiter_queue_depth"] == "1"
    given_back = their.call("orchestrator", machine.address, "Yield", job_id="a", group_id="g")
    assert given_back["pending_waiters"] == "1"
    assert longer()["ok"]["success"]


def test_their_client_is_refused_as_it_knows_it(machine: Machine, their: Their) -> None:
    assert their.call("orchestrator", machine.address, "ListGroups") == {"group_ids": ["g"]}
    refused: list[tuple[str, dict[str, str], str]] = [
        ("Acquire", {"job_id": "a", "group_id": "nowhere"}, "NOT_FOUND"),
        ("Acquire", {"group_id": "g"}, "INVALID_ARGUMENT"),
        ("GetGroupStatus", {"group_id": "nowhere"}, "NOT_FOUND"),
        ("Yield", {"job_id": "a", "group_id": "g"}, "PERMISSION_DENIED"),
    ]
    for method, fields, code in refused:
        answer = their.begin("orchestrator", machine.address, method, **fields)()
        assert answer["code"] == code, (method, answer)
        assert answer["details"]


def test_their_clients_yields_are_judged_by_the_job_alone(machine: Machine, their: Their) -> None:
    def answer(method: str, job: str, group: str = "g") -> dict[str, Any]:
        return their.begin("orchestrator", machine.address, method, job_id=job, group_id=group)()

    assert answer("Acquire", "a")["ok"]["success"]
    assert answer("Acquire", "a")["ok"]["success"]  # another process of the job: the same lease
    assert answer("Yield", "b")["code"] == "PERMISSION_DENIED"
    assert answer("Yield", "a", "nowhere")["code"] == "NOT_FOUND"
    assert machine.status().group.locking_job == "a"
    assert answer("Yield", "a")["ok"]["success"]
    assert answer("Yield", "a")["ok"]["success"]  # the other process's, or a repeated one: nobody was granted since
    assert answer("Acquire", "b")["ok"]["success"]
    assert answer("Yield", "a")["code"] == "PERMISSION_DENIED"
    assert machine.status().group.locking_job == "b"


# Their client, our agent.


def test_their_orchestrator_can_drive_our_agent(tmp_path: Path, their: Their) -> None:
    def done(method: str, **fields: Any) -> dict[str, Any]:
        began = their.call("agent", node.address, method, job_id="a", group="g", **fields)
        while True:  # As their contract has it: there is no other way to hear of the end.
            ended = their.call("agent", node.address, "GetOperation", operation_id=began["operation_id"])
            if ended["status"] != "OPERATION_STATUS_PENDING":
                return ended

    def state() -> str:
        [job] = their.call("agent", node.address, "Status")["job_statuses"]
        return job["state"]  # type: ignore[no-any-return]

    node = Node("n0", tmp_path / "n0", "1x64MiB", {"g": "0"}, [])
    with contextlib.ExitStack() as stack:
        node.agent.start()
        stack.callback(node.agent.stop)
        process = DeviceProcess(node)
        stack.callback(process.kill)
        stack.callback(register_workload(node.address, "a", "g", pids=[process.pid]).close)
        digest = process.call("alloc", "weights", 8 << 20, 1)
        saved = done("Snapshot", backend="BACKEND_CUDA")
        assert saved["status"] == "OPERATION_STATUS_COMPLETE", saved
        assert int(saved["snapshot_device_bytes"]) >= 8 << 20
        assert state() == "JOB_STATE_SAVED"
        restored = done("Restore")
        assert restored["status"] == "OPERATION_STATUS_COMPLETE", restored
        assert state() == "JOB_STATE_RUNNING"
        assert process.call("digest", "weights") == digest
        unknown = their.begin("agent", node.address, "GetOperation", operation_id="no-such")()
        assert unknown["code"] == "NOT_FOUND"


# Their workload, our agent and orchestrator.


class TheirWorkload:
    """One that saves itself as their contract has it: it says of each command what it is told to say."""

    def __init__(self, stubs: Path, machine: Machine, job: str) -> None:
        self._program = Program(stubs, "llmd_workload.py", machine.node.address, job, "g")
        self._lines = self._program.lines()

    def told(self) -> Any:
        return next(self._lines)

    def say(self, error: str = "") -> None:
        assert self._program.process.stdin is not None
        self._program.process.stdin.write(f"{error}\n")
        self._program.process.stdin.flush()

    def kill(self) -> None:
        process = self._program.process
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def test_their_workload_takes_turns_at_our_servers(machine: Machine, stubs: Path) -> None:
    theirs, other = machine.client("theirs"), machine.client("other")
    theirs.acquire(timeout_sec=LIMIT_S)
    workload = TheirWorkload(stubs, machine, "theirs")
    machine.at_end(workload.kill)
    assert workload.told() == "registered"
    waits = Caller(other.acquire, timeout_sec=LIMIT_S)
    theirs.release()
    assert workload.told() == "snapshot"
    assert waits.blocks
    workload.say("not now")
    assert workload.told() == "snapshot", "the orchestrator tries again"
    workload.say()
    assert waits.wait().success
    waits = Caller(theirs.acquire, timeout_sec=LIMIT_S)
    machine.wait_for(lambda group: [waiter.job_id for waiter in group.waiters] == ["theirs"])
    other.release()
    assert workload.told() == "restore"
    assert waits.blocks
    workload.say()
    assert waits.wait().context_restored


# Our client, their orchestrator and their agent.


class TheirOrchestrator:
    """It runs with the groups g and h; `calls` has what it was asked."""

    def __init__(self, stubs: Path) -> None:
        self.program = Program(stubs, "llmd_orchestrator.py", "127.0.0.1:0", "g", "h")
        lines = self.program.lines()
        self.address = f"127.0.0.1:{next(lines)['port']}"
        self.calls: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        threading.Thread(target=lambda: [self.calls.put(line) for line in lines], daemon=True).start()

    def next(self) -> list[str]:
        return self.calls.get(timeout=LIMIT_S)


@pytest.fixture
def theirs(stubs: Path) -> Iterator[TheirOrchestrator]:
    orchestrator = TheirOrchestrator(stubs)
    yield orchestrator
    orchestrator.program.end()


def test_our_client_takes_turns_at_their_orchestrator(theirs: TheirOrchestrator) -> None:
    with (
        TimeSliceOrchestratorClient(theirs.address, "a", "g") as a,
        TimeSliceOrchestratorClient(theirs.address, "b", "g") as b,
    ):
        assert a.list_groups() == ["g", "h"]
        assert a.acquire().success
        assert theirs.next() == ["Acquire", "a", "g"]
        assert a.get_status().group.group_state is GroupLockState.LOCKED
        assert theirs.next() == ["GetGroupStatus", "", "g"]
        waiting = Caller(b.acquire)
        assert theirs.next() == ["Acquire", "b", "g"]
        assert a.release() == YieldResult(True, 1, False)
        granted = waiting.wait()
        assert isinstance(granted, AcquireResult)
        assert granted.context_restored
        assert b.release() == YieldResult(True, 0, True)


def test_our_client_asks_their_orchestrator_once_however_long_it_waits(theirs: TheirOrchestrator) -> None:
    """It knows no slices: a second attempt would stand in the queue a second time."""
    with (
        TimeSliceOrchestratorClient(theirs.address, "a", "g") as a,
        TimeSliceOrchestratorClient(theirs.address, "b", "g", wait_slice_s=0.2) as b,
    ):
        a.acquire()
        with pytest.raises(OrchestratorTimeoutError):
            b.acquire(timeout_sec=11)  # Longer than a slice and the 10 s that its answer may be late.
        assert a.get_status().group.waiter_queue_depth == 0
        assert [theirs.next() for _ in range(3)] == [
            ["Acquire", "a", "g"],
            ["Acquire", "b", "g"],
            ["GetGroupStatus", "", "g"],
        ]


def test_our_client_reports_their_refusals(theirs: TheirOrchestrator) -> None:
    with TimeSliceOrchestratorClient(theirs.address, "a", "g") as a:
        with pytest.raises(OrchestratorError, match="does not hold") as refused:
            a.release()
        assert refused.value.code == "PERMISSION_DENIED"
        with pytest.raises(OrchestratorError, match="nowhere") as unknown:
            a.get_status("nowhere")
        assert unknown.value.code == "NOT_FOUND"


def test_our_client_drives_their_agent(stubs: Path) -> None:
    agent = LlmdAgent(stubs)
    agent.start(a="RUNNING")
    try:
        with SnapshotAgentClient(agent.address) as client:
            assert client.snapshot_and_wait("a").status == "OPERATION_STATUS_COMPLETE"
            assert [(job.job_id, job.state) for job in client.status().job_statuses] == [("a", "JOB_STATE_SAVED")]
            assert client.restore_and_wait("a").status == "OPERATION_STATUS_COMPLETE"
    finally:
        agent.kill()
