"""watch, evict and doctor with the real orchestrator and agent on mock GPUs."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from live import Running
from mock_machine import MockMachine


@pytest.fixture
def machine(short_dir: Path) -> Iterator[MockMachine]:
    with MockMachine(short_dir) as machine:
        yield machine


def next_event(command: Running, kind: str) -> dict:
    while (event := json.loads(command.wait_for("{")))["kind"] != kind:
        pass
    return event


def test_watch_sees_two_jobs_take_turns_and_a_restart(machine):
    up = machine.up("--group", "pool=0", "--group", "rest=1")
    watch = machine.start("-m", "timeslice.cli", "watch", "--json", "pool")
    assert next_event(watch, "state")["status"]["state"] == "IDLE"
    a, b = machine.job("a"), machine.job("b")
    a.say()
    a.wait_for("a holds")
    granted = next_event(watch, "granted")
    assert (granted["job"], granted["status"]["holder"], granted["group"]) == ("a", "a", "pool")
    b.say()
    queued = next_event(watch, "queued")
    assert (queued["job"], [w["job"] for w in queued["status"]["waiters"]]) == ("b", ["b"])
    a.say()
    b.wait_for("b holds")
    assert next_event(watch, "snapshot_finished")["job"] == "a"
    assert next_event(watch, "granted")["job"] == "b"

    up.process.terminate()
    assert up.end() == 0
    assert next_event(watch, "connection_lost")
    machine.up("--group", "pool=0", "--group", "rest=1")
    assert next_event(watch, "connection_back")
    assert next_event(watch, "state")["status"]["holder"] == "b"
    watch.process.send_signal(signal.SIGINT)
    assert watch.end() == 130
    assert watch.errors == []
    b.say()
    b.wait_for("b gave back")
    for job in (a, b):
        job.say("end")
        assert job.process.wait(60) == 0, job.errors


def test_operator_ends_a_lease_drops_a_waiter_and_kills(machine):
    machine.up("--group", "pool=0", "--group", "rest=1")
    watch = machine.start("-m", "timeslice.cli", "watch", "--json", "pool")
    next_event(watch, "state")
    a, b = machine.job("a"), machine.job("b")
    a.say()
    a.wait_for("a holds")
    b.say()
    assert next_event(watch, "queued")["job"] == "b"

    done = machine.timeslice("evict", "drop-waiter", "pool", "b", "--yes", "--reason", "too late")
    assert done.returncode == 0, done.stderr
    assert next_event(watch, "left")["job"] == "b"
    assert b.process.wait(60) == 1
    b.end()
    assert any("too late" in line for line in b.errors)

    done = machine.timeslice("evict", "end-lease", "pool", "a", "--yes", "--reason", "maintenance")
    assert (done.returncode, done.stderr) == (0, "")
    assert "of job 'a' ended" in done.stdout
    assert next_event(watch, "evicted")["detail"] == "maintenance"
    assert next_event(watch, "snapshot_finished")["job"] == "a"
    assert machine.timeslice("evict", "end-lease", "pool", "--yes").returncode == 1  # Nobody holds it now.

    done = machine.timeslice("evict", "kill", "pool", "a", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert f"[{a.process.pid}]" in json.loads(done.stdout)["done"][0]
    assert a.process.wait(60) == -signal.SIGKILL
    done = machine.timeslice("evict", "forget-node", "nowhere", "--yes")
    assert (done.returncode, "nowhere" in done.stderr) == (1, True)


def test_doctor_finds_the_mock_and_the_servers_in_order(machine):
    machine.up("--group", "pool=0", "--group", "rest=1")
    done = machine.timeslice("doctor", "--json")
    findings = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0, done.stdout
    assert "the GPUs are mock ones" in findings["CUDA driver"]["text"]
    assert findings["checkpoint calls"]["grade"] == "OK"
    assert findings["GPUs"]["text"].startswith("0: Mock H100 80GB HBM3 32 MiB, 1: ")
    assert findings["orchestrator"]["text"].endswith("answers; groups: pool, rest")
    assert "2 GPUs, groups: pool, rest" in findings["snapshot agent"]["text"]
    assert findings["user of the agent"]["grade"] == "OK"
    assert machine.timeslice("doctor").stdout.splitlines()[-1].endswith("nothing fails")
