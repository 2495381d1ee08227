"""`timeslice evict`: says whom it hits, asks, does it, and passes on what the orchestrator says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_event_log import TellingOrchestrator
from terminal import OnTerminal
from timeslice.cli.errors import CommandError
from timeslice.cli.evict_plans import clear_fault, drop_waiter, end_lease, forget_node, kill
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

Action = pb2.EvictRequest
NOW_S = 1_700_000_000.0


def group(name: str = "pool", holder: str | None = None, waiters: tuple[tuple[str, str], ...] = (), **more) -> dict:
    return {
        "group": name, "state": "LOCKED" if holder else "IDLE", "since": NOW_S - 130, "holder": holder,
        "waiters": [{"job": job, "request": request, "waited_ms": 5000} for job, request in waiters],
        "contexts": [], "accelerators": [], **more,
    }  # fmt: skip


def context(job: str, node: str, state: str = "RUNNING") -> dict:
    return {"job": job, "node": node, "state": state}


# Whom it hits.


def test_end_lease_names_the_holder_and_who_is_next():
    plan = end_lease(group(holder="a", waiters=(("b", "r1"),)), None, "maintenance", NOW_S)
    assert plan.request == pb2.EvictRequest(
        group_id="pool", job_id="a", reason="maintenance", action=Action.ACTION_END_LEASE
    )
    assert "lease of job 'a' on group 'pool', LOCKED for 2 min" in plan.what
    assert "next in line is job 'b'" in plan.what
    assert plan.costs_work


def test_end_lease_of_another_holder_is_refused():
    with pytest.raises(CommandError, match="held by job 'a', not by 'b'; nothing was changed"):
        end_lease(group(holder="a"), "b", "", NOW_S)
    with pytest.raises(CommandError, match="held by nobody"):
        end_lease(group(), None, "", NOW_S)


def test_drop_waiter_takes_all_requests_of_a_job_or_one():
    waiting = group(waiters=(("b", "r1"), ("c", "r2"), ("b", "r3")))
    plan = drop_waiter(waiting, "b", None, "")
    assert (plan.request.job_id, plan.request.request_id) == ("b", "")
    assert "job 'b' (2 requests) out of the queue of group 'pool', where it has waited for 5 s" in plan.what
    plan = drop_waiter(waiting, None, "r2", "")
    assert (plan.request.job_id, plan.request.request_id) == ("c", "r2")


def test_waiter_that_is_not_there_is_refused_with_those_who_are():
    with pytest.raises(CommandError, match=r"job 'x' does not wait for group 'pool' \(waiting: jobs 'b' and 'c'\)"):
        drop_waiter(group(waiters=(("c", "r1"), ("b", "r2"))), "x", None, "")
    with pytest.raises(CommandError, match=r"request 'r9' does not wait .*waiting: nobody"):
        drop_waiter(group(), None, "r9", "")


def test_clear_fault_takes_nothing_from_anybody():
    plan = clear_fault(group(), "a", "fixed")
    assert plan.request.action == Action.ACTION_CLEAR_FAULT
    assert not plan.costs_work


def test_kill_names_the_nodes():
    plan = kill(group(contexts=[context("a", "n1"), context("b", "n1"), context("a", "n2", "SAVED")]), "a", "")
    assert "processes of job 'a' in group 'pool' on node 'n1' (RUNNING), node 'n2' (SAVED)" in plan.what
    with pytest.raises(CommandError, match=r"group 'pool' has no processes of job 'x' \(known: job 'b'\)"):
        kill(group(contexts=[context("b", "n1")]), "x", "")


def test_forget_node_names_groups_and_jobs_and_asks_a_group_that_has_it():
    groups = [
        group("a"),
        group("b", accelerators=["n1/GPU-1", "n2/GPU-2"], contexts=[context("j", "n1"), context("k", "n2")]),
        group("c", contexts=[context("i", "n1")]),
    ]
    plan = forget_node(groups, "n1", "")
    assert plan.request == pb2.EvictRequest(group_id="b", node="n1", action=Action.ACTION_FORGET_NODE)
    assert "node 'n1' for good in groups 'b' and 'c'; jobs 'i' and 'j' with memory there will be faulted" in plan.what
    # One that never came: only the orchestrator knows whether it expects it.
    assert forget_node(groups, "n9", "").request.group_id == "a"


# The command.


@pytest.fixture
def orchestrator(short_dir: Path) -> Iterator[TellingOrchestrator]:
    server = TellingOrchestrator(f"unix:{short_dir}/o.sock", "trainers", "samplers")
    server.answers = {Action.ACTION_END_LEASE: ["lease 1 of job 'a' ended"], Action.ACTION_FORGET_NODE: ["forgotten"]}
    server.start()
    yield server
    server.stop()


def evict(orchestrator: TellingOrchestrator, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timeslice.cli", "evict", *arguments, "--target", orchestrator.address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_with_yes_it_is_done_and_said(orchestrator):
    orchestrator.hold("trainers", "a")
    done = evict(orchestrator, "end-lease", "trainers", "--yes", "--reason", "maintenance")
    assert (done.returncode, done.stdout, done.stderr) == (0, "lease 1 of job 'a' ended\n", "")
    [request] = orchestrator.seen("Evict")
    assert (request.group_id, request.job_id, request.reason) == ("trainers", "a", "maintenance")


def test_without_a_terminal_and_without_yes_nothing_is_done(orchestrator):
    orchestrator.hold("trainers", "a")
    done = evict(orchestrator, "end-lease", "trainers")
    assert done.returncode == 2
    assert "this would end the lease of job 'a' on group 'trainers'" in done.stderr
    assert "say --yes" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert orchestrator.seen("Evict") == []


def test_json_says_what_was_done_to_whom(orchestrator):
    done = evict(orchestrator, "forget-node", "n7", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "orchestrator": orchestrator.address, "action": "forget-node", "group": None, "job": None, "request": None,
        "node": "n7", "done": ["forgotten"],
    }  # fmt: skip


def test_refusal_of_the_orchestrator_is_passed_on(orchestrator):
    done = evict(orchestrator, "clear-fault", "trainers", "a")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "timeslice evict: group 'trainers' has nothing; nothing was changed.\n"


def test_orchestrator_that_knows_no_evict(orchestrator):
    orchestrator.fail_next("Evict", "UNIMPLEMENTED", "Method not found!")
    done = evict(orchestrator, "clear-fault", "trainers", "a")
    assert done.returncode == 1
    assert "knows no Evict" in done.stderr


def test_group_that_is_not_there(orchestrator):
    done = evict(orchestrator, "kill", "nowhere", "a", "--yes")
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert orchestrator.seen("Evict") == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "required: ACTION"),
        (["kill", "trainers"], "required: JOB"),
        (["drop-waiter", "trainers"], "needs a JOB or --request"),
    ],
)
def test_arguments_that_cannot_be(orchestrator, arguments, text):
    command = [sys.executable, "-m", "timeslice.cli", "evict", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert text in done.stderr


@pytest.fixture
def asked(orchestrator) -> Iterator[OnTerminal]:
    """`timeslice evict end-lease` on a terminal, where it waits for an answer."""
    orchestrator.hold("trainers", "a")
    command = ["-m", "timeslice.cli", "evict", "end-lease", "trainers", "--target", orchestrator.address]
    terminal = OnTerminal(command, dict(os.environ))
    terminal.wait_for("Go on? [y/N]")
    assert "end the lease of job 'a'" in terminal.text
    assert orchestrator.seen("Evict") == []
    yield terminal
    if terminal.process.poll() is None:
        terminal.kill()
        terminal.end()


def test_person_who_says_yes(orchestrator, asked):
    asked.type("y\n")
    assert asked.end() == 0
    assert "lease 1 of job 'a' ended" in asked.text
    assert len(orchestrator.seen("Evict")) == 1


@pytest.mark.parametrize(("typed", "code"), [("\n", 1), ("no\n", 1), ("\x04", 1), ("\x03", 130)])
def test_person_who_does_not(orchestrator, asked, typed, code):
    asked.type(typed)
    assert asked.end() == code
    assert orchestrator.seen("Evict") == []
    assert "Traceback" not in asked.text
