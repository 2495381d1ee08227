"""`timeslice run`: names, environment, cgroups and words for waiting, without any process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice._processes import start_time
from timeslice.cli import run_cgroup
from timeslice.cli.run_cgroup import Cgroup, make_cgroup
from timeslice.cli.run_devices import visible_devices
from timeslice.cli.run_plan import default_job_id, plan
from timeslice.cli.run_signals import NUMBERS, Interrupted, Signals
from timeslice.cli.run_waiting import waiting_lines


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["./train"], "train"),
        (["/usr/bin/python3.11", "-u", "jobs/train.py", "--lr", "1"], "train.py"),
        (["python", "-m", "trainer.main", "x.yaml"], "trainer.main"),
        (["torchrun", "--nproc-per-node", "4", "loop.py"], "loop.py"),
        (["python", "-c", "import x"], "python"),
        (["sh", "-c", "echo a.py"], "sh"),
        (["my tool!"], "my-tool-"),
    ],
)
def test_job_id_names_user_command_and_process(words, name):
    assert default_job_id(words, "alice", 7) == f"alice-{name}-7"


def planned(env: dict[str, str], **more):
    unset = dict.fromkeys(("job", "target", "agent", "timeout_s"))
    return plan(["true"], env, **{"group": "g", "holds": True, "verbose": False, **unset, **more})


def test_arguments_go_before_the_environment():
    env = {"TIMESLICE_JOB_ID": "from-env", "TIMESLICE_GROUP_ID": "g-env"}
    made = planned(env, group=None)
    assert (made.job, made.group) == ("from-env", "g-env")
    made = planned(env, job="given")
    assert (made.job, made.env["TIMESLICE_JOB_ID"], made.group) == ("given", "given", "g")


def test_every_run_has_a_marker_of_its_own():
    first, second = planned({"TIMESLICE_TREE": "of another run"}), planned({})
    assert first.marker != second.marker
    assert first.env["TIMESLICE_TREE"] == first.marker
    assert len(first.marker) >= 16


def test_addresses_hold_wherever_the_command_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = planned({}, target="unix:o.sock", agent="127.0.0.1:5000")
    assert made.env["TIMESLICE_ORCH_ADDR"] == f"unix:{tmp_path}/o.sock"
    assert made.env["TIMESLICE_AGENT_ADDR"] == "127.0.0.1:5000"


@pytest.mark.parametrize(
    ("env", "heartbeat", "note"),
    [
        ({}, "86400", "86400 is set"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30"}, "30", "TIMEOUT_SEC=30 stays"),
        ({"TORCH_NCCL_ENABLE_MONITORING": "0"}, None, "is off"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "soon"}, "soon", "not a whole number"),
    ],
)
def test_row_43_watchdog_gets_a_limit_unless_the_user_set_one(env, heartbeat, note):
    made = planned(env)
    assert made.env.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") == heartbeat
    assert any(note in line for line in made.notes)


# GPUs.


def gpus(*groups: str) -> list[pb2.AcceleratorStatus]:
    return [pb2.AcceleratorStatus(id=f"GPU-{i}", groups=[group]) for i, group in enumerate(groups)]


@pytest.mark.parametrize(
    ("groups", "env", "given"),
    [
        (("a", "g"), {}, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (("g", "a", "g"), {}, {"CUDA_VISIBLE_DEVICES": "0,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (("a", "g"), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}),
        (("a", "g"), {"CUDA_VISIBLE_DEVICES": ""}, {}),
        (("g", "g"), {}, {}),
        (("a", "b"), {}, {}),
    ],
)
def test_command_sees_the_gpus_of_its_group_only(groups, env, given):
    assert visible_devices(gpus(*groups), "g", env)[0] == given


def test_gpus_that_the_user_chose_stay_and_are_told_beside_the_groups():
    _, [note] = visible_devices(gpus("a", "g"), "g", {"CUDA_VISIBLE_DEVICES": "0"})
    assert note == "CUDA_VISIBLE_DEVICES=0 stays; the group's GPUs are 1"


# Cgroups.


def fake_machine(folder: Path, cgroup: str, mountinfo: str) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    (folder / "proc/self/mountinfo").write_text(mountinfo.replace("ROOT", str(folder)))
    return folder / "proc"


V2 = "30 24 0:26 / ROOT/unified rw - cgroup2 cgroup2 rw\n"
V1 = "31 24 0:27 / ROOT/freezer rw - cgroup cgroup rw,freezer\n32 24 0:28 / ROOT/memory rw - cgroup cgroup rw,memory\n"


class Kernel:
    """Gives a new cgroup its files, as cgroupfs does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mkdir = Path.mkdir

        def make(path: Path, *args, **kwargs) -> None:
            mkdir(path, *args, **kwargs)
            if path.name.startswith(run_cgroup.PREFIX):
                (path / "cgroup.procs").write_text("")

        monkeypatch.setattr(Path, "mkdir", make)


@pytest.mark.parametrize(
    ("own", "mounts", "where", "controllers"),
    [
        ("0::/jobs/a\n", V2, "unified/jobs/a", ""),
        ("7:freezer:/jobs/a\n4:memory:/m\n0::/jobs/a\n", V2 + V1, "unified/jobs/a", ""),
        ("7:freezer:/jobs/a\n4:memory:/m\n", V1, "freezer/jobs/a", "freezer"),
        ("4:memory:/m\n", V1, None, None),
        ("0::/../outside\n", V2, None, None),
        ("0::/jobs/a\n", "", None, None),
    ],
)
def test_cgroup_is_made_below_our_own_in_version_2_or_else_1(tmp_path, monkeypatch, own, mounts, where, controllers):
    proc = fake_machine(tmp_path, own, mounts)
    for folder in ("unified/jobs/a", "freezer/jobs/a", "memory/m"):
        (tmp_path / folder).mkdir(parents=True)
    Kernel(monkeypatch)
    made = make_cgroup(1, proc)
    if where is None:
        assert made is None
    else:
        assert made == Cgroup(tmp_path / where / f"timeslice-run-1-{start_time(1)}", controllers)


def test_cgroups_that_may_not_be_made_are_done_without(tmp_path):
    proc = fake_machine(tmp_path, "0::/jobs/a\n", V2)  # no such folder: mkdir fails, as on a read-only mount
    assert make_cgroup(1, proc) is None


def test_cgroups_of_runs_that_were_killed_are_removed(tmp_path, monkeypatch):
    proc = fake_machine(tmp_path, "0::/\n", V2)
    (tmp_path / "unified").mkdir()
    old, living, full = (
        tmp_path / "unified" / f"timeslice-run-{name}" for name in ("1-99", f"1-{start_time(1)}", "2-7")
    )
    for folder in (old, living, full):
        folder.mkdir()
    (full / "a process").write_text("")
    Kernel(monkeypatch)
    made = make_cgroup(2_000_000_000, proc)
    assert made is not None
    assert [folder.exists() for folder in (old, living, full)] == [False, True, True]


# Words.


def group(state: str = "LOCKED", holder: str | None = "b", waiters: tuple[str, ...] = ("c", "a"), **more) -> dict:
    return {
        "group": "trainers", "state": state, "holder": holder, "waiters": [{"job": job} for job in waiters],
        "conditions": [], **more,
    }  # fmt: skip


def test_waiting_job_is_told_who_holds_and_its_place():
    assert waiting_lines(group(), "a") == ["waiting for group trainers: held by b, place 2 of 2 in the queue"]
    [line] = waiting_lines(group("SWITCHING", None, ("a",)), "a")
    assert line == "waiting for group trainers: its jobs are being exchanged, place 1 of 1 in the queue"
    assert waiting_lines(group("IDLE", None, ()), "a") == ["waiting for group trainers"]
    assert "a node does not answer" in waiting_lines(group("UNKNOWN", None), "a")[0]


def test_what_needs_attention_is_told_besides():
    blocked = {"type": "Blocked", "reason": "b cannot be saved", "jobs": ["b"], "advice": "End it."}
    assert waiting_lines(group(conditions=[blocked]), "a")[1] == "trainers: Blocked: b cannot be saved (b); End it."


# Signals.


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signals = Signals()
    signals.handle()
    yield signals
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_is_waited_for_comes_back_or_is_raised(signals):
    assert signals.wait_for(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        signals.wait_for(lambda: 1 / 0)


def test_signal_ends_the_waiting_and_not_the_next_one(signals):
    with pytest.raises(Interrupted) as interrupted:
        signals.wait_for(lambda: (os.kill(os.getpid(), signal.SIGTERM), threading.Event().wait()))
    assert interrupted.value.number == signal.SIGTERM
    assert signals.wait_for(lambda: "given back") == "given back"


def test_signal_between_two_waits_ends_the_next_one_or_the_start_once(signals):
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted):
        signals.wait_for(lambda: 7)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted):
        signals.pass_to(2**22 + 1)
    assert signals.wait_for(lambda: 7) == 7
