"""`timeslice run` on the whole path: process trees with device memory contend for a group; the journal is the judge."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calls import held_by, waiting
from device_truth import WORK, overlaps_of_unlocked_work
from machine import LOOK_AGAIN_S, Machine

TREE = str(Path(__file__).with_name("tree_process.py"))
TIMEOUT_S = 60.0
STOPPED_S = 1.0
"""Twice the half second in which an intruder is stopped: the machine may be busy."""
WITHOUT = """
for mount in $(awk '$3 ~ /^('"$1"')$/ {print $2}' /proc/mounts); do mount -o remount,ro,bind $mount || exit 1; done
shift; exec "$@"
"""
"""Where cgroups may be made, as root usually: in a mount namespace in which those of some kinds may not."""
WAYS = {"cgroup2": "none", "cgroup1": "cgroup2", "ancestry": "cgroup2?"}
"""How the processes of a tree are known: the way, and the kinds of mounts that are closed for it."""
WHICH_WAY = """
import os
from timeslice.cli.run_cgroup import make_cgroup
made = make_cgroup(os.getpid())
print("ancestry" if made is None else "cgroup1" if made.controllers else "cgroup2")
if made is not None:
    made.remove()
"""


def in_way(way: str, *command: str) -> list[str]:
    if which_way() == "ancestry":
        return list(command)  # there is no other here
    # Unchanged: in a chroot the root is no mount whose propagation could be. A remount stays in its namespace anyway.
    return ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", WITHOUT, "sh", WAYS[way], *command]


@functools.cache
def which_way(way: str | None = None) -> str:
    """The way in which a tree is known here; in a namespace for `way` if given."""
    command = [sys.executable, "-c", WHICH_WAY]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(in_way(way, *command) if way else command, env=env, capture_output=True, text=True)
    return done.stdout.strip()


class Run:
    """A `timeslice run` whose command says JSON lines."""

    def __init__(self, machine: Machine, job: str, options: list[str], *words: str, way: str = "cgroup2") -> None:
        node = machine.nodes["n0"]
        command = [sys.executable, "-m", "timeslice.cli", "run", "--group", "g", "--job", job, "--verbose", *options]
        env = {**node.env, "TIMESLICE_ORCH_ADDR": machine.address, "TIMESLICE_AGENT_ADDR": node.address}
        self.process = subprocess.Popen(
            [*in_way(way, *command), "--", *words], env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.said: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._readers = [threading.Thread(target=self._read_output), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def hear(self, name: str) -> Any:
        """The next thing of that name that the command says."""
        while (what := self._heard.get(timeout=TIMEOUT_S)) is not None:
            self.said.append(what)
            if name in what:
                return what[name]
        raise AssertionError(f"the command ended without {name!r}: {self.said} {self.errors}")

    def be_told(self, text: str) -> None:
        """Wait for a line of stderr that has this in it."""
        with self._changed:
            is_told = self._changed.wait_for(lambda: any(text in line for line in self.errors), TIMEOUT_S)
        assert is_told, f"never told {text!r}: {self.errors}"

    def finish(self) -> None:
        """Let a command of rounds without end come to its end."""
        assert self.process.stdin is not None
        self.process.stdin.write("enough\n")
        self.process.stdin.flush()

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        while (what := self._heard.get(timeout=TIMEOUT_S)) is not None:
            self.said.append(what)
        return code

    def windows(self) -> list[tuple[int, int, int]]:
        """(pid, begin_ns, end_ns): when which of its device processes was allowed to work."""
        pids = [pid for what in self.said for pid in what.get("pids", [])]
        turns = [what["turn"] for what in self.said if "turn" in what]
        return [(pid, begin, end) for pid in pids for begin, end in turns]

    def close(self) -> None:
        for pid in [self.process.pid, *(pid for what in self.said for pid in what.get("pids", []))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        for reader in self._readers:
            reader.join(TIMEOUT_S)

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._heard.put(json.loads(line))
        self._heard.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                with self._changed:
                    self.errors.append(line)
                    self._changed.notify_all()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path) as made:
        yield made


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Ended, whatever the test leaves."""
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


@pytest.fixture(params=["cgroup2", "ancestry"])
def way(request: pytest.FixtureRequest) -> str:
    """How the processes of a tree are known."""
    if which_way(request.param) != request.param:
        pytest.skip(f"cgroups of that kind may not be made here: {which_way()}")
    return str(request.param)


def tree(mode: str, size_mib: int, seed: int, rounds: int) -> list[str]:
    return [sys.executable, TREE, mode, str(size_mib), str(seed), str(rounds)]


def ended(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    is_over = select.select([fd], [], [], TIMEOUT_S)[0]
    os.close(fd)
    assert is_over, f"process {pid} lives on"


def worked_s(machine: Machine, pid: int) -> float:
    """From a process's first to its last work on the device; 0 if it was stopped before any."""
    begins = [r["begin_ns"] for r in machine.nodes["n0"].journal() if r["pid"] == pid and r["kind"] in WORK]
    return (begins[-1] - begins[0]) / 1e9 if begins else 0.0


def until_saved(machine: Machine, pid: int) -> None:
    """Wait until the mock shows a process so. Looked at again and again: there is no event for it."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        shown = json.loads(machine.nodes["n0"].gpu_mock("show", "--json"))["processes"]
        if any(process["pid"] == pid and process["state"] == "checkpointed" for process in shown):
            return
        assert time.monotonic() < deadline, f"process {pid} is never saved: {shown}"
        time.sleep(LOOK_AGAIN_S)


@pytest.mark.parametrize("way", list(WAYS), indirect=True)
def test_two_trees_that_do_not_fit_together_take_turns_and_keep_their_contents(
    machine: Machine, runs: list[Run], way: str
) -> None:
    """Each a root, a child, and an orphan without the marker; 24 of 32 MiB each: whoever is missed is in the way."""
    for job, seed in (("a", 1), ("b", 11)):
        runs.append(Run(machine, job, ["--no-hold"], *tree("turns", 12, seed, 4), way=way))
    assert [run.end() for run in runs] == [0, 0], [run.errors for run in runs]
    assert all({"intact": True} in run.said for run in runs)
    journal = machine.nodes["n0"].journal()
    windows = [window for run in runs for window in run.windows()]
    assert len({pid for pid, _, _ in windows}) == 4
    assert overlaps_of_unlocked_work(journal, windows) == []
    assert machine.status().group.handoffs_total >= 4
    named = {"cgroup2": "known by cgroup ", "cgroup1": "/freezer/", "ancestry": "known by ancestry"}
    assert all(named[way] in run.errors[0] for run in runs)


def test_command_finds_its_groups_gpu_as_the_first(tmp_path: Path, runs: list[Run]) -> None:
    with Machine(tmp_path, nodes={"n0": {"h": "0", "g": "1"}}, gpus="2x32MiB") as machine:
        run = Run(machine, "a", [], *tree("held", 4, 1, 2))
        runs.append(run)
        assert run.end() == 0, run.errors
        journal = machine.nodes["n0"].journal()
        assert {record["device"] for record in journal if record["kind"] in WORK} == {1}


def test_two_commands_that_hold_the_group_run_one_after_the_other(machine: Machine, runs: list[Run], way: str) -> None:
    first = Run(machine, "a", [], *tree("held", 10, 1, 0), way=way)
    runs.append(first)
    first.hear("pids")
    second = Run(machine, "b", [], *tree("held", 10, 11, 3), way=way)
    runs.append(second)
    second.be_told("waiting for group g: held by a, place 1 of 1")
    first.finish()
    assert [run.end() for run in runs] == [0, 0], [run.errors for run in runs]
    assert all({"intact": True} in run.said for run in runs)
    journal = machine.nodes["n0"].journal()
    assert overlaps_of_unlocked_work(journal, [window for run in runs for window in run.windows()]) == []
    last = max(end for _, _, end in first.windows())
    assert all(record["begin_ns"] >= last for record in journal if record["kind"] in WORK
               and record["pid"] in {pid for pid, _, _ in second.windows()})  # fmt: skip


def test_group_stays_held_by_a_command_whose_timeslice_run_was_killed_until_it_ends(
    machine: Machine, runs: list[Run], way: str
) -> None:
    """kill -9 of `timeslice run`: nobody else works beside its command, and nothing is held for ever."""
    first = Run(machine, "a", [], *tree("held", 10, 1, 0), way=way)
    runs.append(first)
    pids = first.hear("pids")
    first.hear("turn")
    second = Run(machine, "b", [], *tree("held", 10, 11, 2), way=way)
    runs.append(second)
    machine.wait_for(waiting("b"))
    root = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    first.process.kill()
    first.process.wait()
    for _ in range(3):
        first.hear("turn")  # it works on, and b is not let in
    assert held_by("a")(machine.status().group)
    os.kill(root, signal.SIGKILL)
    assert second.end() == 0, second.errors
    assert {"intact": True} in second.said
    for pid in pids:
        ended(pid)  # their root's end closed their stdin
    journal = machine.nodes["n0"].journal()
    of_second = {pid for pid, _, _ in second.windows()}
    began = min(record["begin_ns"] for record in journal if record["kind"] in WORK and record["pid"] in of_second)
    late = [r for r in journal if r["pid"] in pids and r["kind"] in WORK - {"free"} and r["begin_ns"] > began]
    assert late == []


def test_restarts_of_orchestrator_and_agent_are_survived(machine: Machine, runs: list[Run]) -> None:
    """Both are killed under a command that holds the group; then it is saved and brought back whole for another."""
    first = Run(machine, "a", ["--no-hold"], *tree("turns", 12, 1, 12))
    runs.append(first)
    first.hear("turn")
    machine.restart()
    first.hear("turn")
    machine.nodes["n0"].agent.kill()
    machine.nodes["n0"].agent.start()
    first.hear("turn")
    second = Run(machine, "b", [], *tree("held", 12, 11, 3))
    runs.append(second)
    assert [run.end() for run in runs] == [0, 0], [run.errors for run in runs]
    assert all({"intact": True} in run.said for run in runs)
    windows = [window for run in runs for window in run.windows()]
    assert overlaps_of_unlocked_work(machine.nodes["n0"].journal(), windows) == []


def test_child_that_is_born_while_its_tree_is_saved_is_saved_too(machine: Machine, runs: list[Run], way: str) -> None:
    late = Run(machine, "a", ["--no-hold"], *tree("late", 8, 1, 1), way=way)
    runs.append(late)
    late.hear("gave_back")
    client = machine.client("b")
    client.acquire(timeout_sec=20)
    process = machine.process("b")
    written = process.call("alloc", "weights", 8 << 20, 1)
    late.finish()
    _, child = late.hear("pids")
    machine.wait_for(waiting("a"))
    until_saved(machine, child)
    assert process.call("digest", "weights") == written
    assert worked_s(machine, child) < STOPPED_S
    client.release()
    assert late.end() == 0, late.errors
    assert {"intact": True} in late.said


def test_row_44_a_tree_that_never_asks_is_stopped_within_half_a_second(
    machine: Machine, runs: list[Run], way: str
) -> None:
    client = machine.client("b")
    client.acquire(timeout_sec=20)
    process = machine.process("b")
    written = process.call("alloc", "weights", 8 << 20, 1)
    wild = Run(machine, "a", ["--no-hold"], *tree("held", 4, 11, 0), way=way)
    runs.append(wild)
    pids = wild.hear("pids")
    machine.wait_for(lambda group: any(c.type == "Intruder" and "a" in c.jobs for c in group.conditions))
    assert process.call("digest", "weights") == written
    assert all(worked_s(machine, pid) < STOPPED_S for pid in pids)
    client.release()
