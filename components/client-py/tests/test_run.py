"""`timeslice run`: what it does around a command, against fakes; no GPU and no real agent."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from fake_agent import FakeAgent
from fake_event_log import TellingOrchestrator
from terminal import OnTerminal
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

TIMEOUT_S = 30.0
CLI = ["-m", "timeslice.cli", "run"]


class Run:
    """A `timeslice run` in a session of its own, its output read as it comes."""

    def __init__(self, env: dict[str, str], *arguments: str, stdin: int | None = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *CLI, *arguments], env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    def hear(self, pattern: str) -> re.Match[str]:
        """Wait for a line of stdout that begins so."""
        return self._await(pattern, self.lines)

    def be_told(self, pattern: str) -> re.Match[str]:
        """Wait for a line of stderr that has this in it."""
        return self._await(f".*(?:{pattern})", self.errors)

    def end(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return code

    def close(self) -> None:
        """Also after a failure; a command outlives a `timeslice run` that is killed."""
        for pid in processes_of_session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _await(self, pattern: str, lines: list[str]) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return next((match for line in lines if (match := re.match(pattern, line))), None)

        with self._changed:
            assert self._changed.wait_for(found, TIMEOUT_S), f"no line {pattern!r}: {self.lines} {self.errors}"
            match = found()
        assert match is not None
        return match

    def _read(self, stream: Iterator[str], lines: list[str]) -> None:
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()


@pytest.fixture
def orchestrator(short_dir: Path) -> Iterator[TellingOrchestrator]:
    server = TellingOrchestrator(f"unix:{short_dir}/o.sock", "trainers")
    server.start()
    yield server
    if server._server is not None:
        server.stop()


@pytest.fixture
def agent(short_dir: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(f"unix:{short_dir}/a.sock")
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def env(orchestrator: TellingOrchestrator, agent: FakeAgent) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_NCCL")}
    return {**without, "TIMESLICE_ORCH_ADDR": orchestrator.address, "TIMESLICE_AGENT_ADDR": agent.address}


Start = Callable[..., Run]


@pytest.fixture
def run(env: dict[str, str]) -> Iterator[Start]:
    """Starts `timeslice run --group trainers ARGUMENTS`."""
    started: list[Run] = []

    def start(*arguments: str, **options: object) -> Run:
        started.append(Run({**env, **options.pop("env", {})}, "--group", "trainers", *arguments, **options))  # type: ignore
        return started[-1]

    yield start
    for one in started:
        one.close()


def shell(script: str) -> list[str]:
    return ["--job", "a", "--", "sh", "-c", script]


def processes_of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                    found.append(int(entry.name))
    return found


def ended(pid: int) -> None:
    """Wait until the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    is_over = select.select([fd], [], [], TIMEOUT_S)[0]
    os.close(fd)
    assert is_over, f"process {pid} lives on"


# The ordinary way.


def test_command_runs_while_the_group_is_held_and_its_exit_code_is_ours(run, orchestrator, agent):
    command = run(*shell("echo started; read line; exit 7"), stdin=subprocess.PIPE)
    command.hear("started")
    assert orchestrator.holder("trainers") == "a"
    command.process.stdin.write("go\n")
    command.process.stdin.flush()
    assert command.end() == 7
    assert orchestrator.holder("trainers") is None
    assert command.errors == [], "nothing to say where nothing was waited for"


def test_tree_is_registered_before_the_group_is_asked_for(run, orchestrator, agent):
    orchestrator.hold("trainers", "b")
    command = run(*shell("echo $$; echo $TIMESLICE_TREE"))
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting)
    [workload] = agent.registered
    assert (workload.job_id, workload.group, list(workload.pids)) == ("a", "trainers", [])
    assert workload.tree.keeper_pid == command.process.pid
    orchestrator.free("trainers")
    assert command.end() == 0
    assert command.lines == [str(workload.tree.root_pid), workload.tree.marker]


def test_command_finds_its_job_group_and_addresses_in_the_environment(run, env):
    names = "$TIMESLICE_JOB_ID $TIMESLICE_GROUP_ID $TIMESLICE_ORCH_ADDR $TIMESLICE_AGENT_ADDR"
    command = run(*shell(f"echo {names}; cd /; echo $GRPC_VERBOSITY."))
    assert command.end() == 0
    addresses = [env["TIMESLICE_ORCH_ADDR"], env["TIMESLICE_AGENT_ADDR"]]
    assert command.lines == [" ".join(["a", "trainers", *addresses]), "."]


def test_session_counts_the_commands_life_and_our_own(run, orchestrator, agent):
    command = run(*shell("echo $$; read line"), stdin=subprocess.PIPE)
    pid = int(command.hear(r"\d+").group())
    session = orchestrator.session_of("a")
    orchestrator.wait_until(lambda: len(session.requests[-1][1].processes) == 2)
    assert {p.pid for p in session.requests[-1][1].processes} == {pid, command.process.pid}


def test_stdin_and_stdout_are_the_commands_own(run):
    command = run("--", "cat", stdin=subprocess.PIPE)
    command.process.stdin.write("line\n")
    command.process.stdin.close()
    assert command.end() == 0
    assert command.lines == ["line"]


@pytest.mark.parametrize("arguments", [["--", "echo", "--", "--x"], ["echo", "--", "--x"]])
def test_words_of_the_command_are_left_as_they_are(run, arguments):
    command = run(*arguments)
    assert command.end() == 0
    assert command.lines == ["-- --x"]


def test_signals_that_python_ignores_are_back_to_normal_for_the_command(run):
    """SIGPIPE and SIGXFSZ: an exec would keep them ignored."""
    command = run("--", "grep", "SigIgn", "/proc/self/status")
    assert command.end() == 0
    assert int(command.lines[0].split()[1], 16) & ((1 << 12) | (1 << 24)) == 0


def test_command_takes_its_turns_itself_without_a_hold(run, orchestrator, agent):
    command = run("--no-hold", *shell("echo $TIMESLICE_JOB_ID"))
    assert command.end() == 0
    assert command.lines == ["a"]
    assert orchestrator.seen("Acquire") == []
    assert len(agent.registered) == 1


# How the command ends.


def test_command_killed_by_a_signal_gives_128_more(run, orchestrator):
    assert run(*shell("kill -9 $$")).end() == 128 + 9
    assert orchestrator.holder("trainers") is None


@pytest.mark.parametrize("word", ["no-such-command-here", "/no/such/command"])
def test_command_that_is_not_there_is_127_as_in_a_shell_without_waiting(run, orchestrator, word):
    command = run("--", word)
    assert command.end() == 127
    assert command.errors == [f"timeslice run: cannot run {word}: there is no such program"]
    assert orchestrator.seen("Acquire") == []


def test_command_that_goes_while_it_waits_is_127_too(run, orchestrator, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    orchestrator.hold("trainers", "b")
    command = run("--", str(program))
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting)
    program.unlink()
    orchestrator.free("trainers")
    assert command.end() == 127
    assert command.errors[-1] == f"timeslice run: cannot run {program}: No such file or directory"
    assert orchestrator.holder("trainers") is None


def test_command_that_cannot_be_executed_is_126(run, tmp_path):
    (tmp_path / "data").write_text("no program")
    command = run("--", str(tmp_path / "data"))
    assert command.end() == 126
    assert "Permission denied" in command.errors[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_signals_go_to_the_commands_process_group_and_the_group_is_given_back(run, orchestrator, number):
    """The shell and its child both hear it, once; the shell decides how it ends."""
    name = number.name.removeprefix("SIG")
    child = f"trap 'echo child {name}; exit' {name}; echo child ready; while :; do sleep 0.05; done"
    command = run(*shell(f'trap "echo parent {name}; exit 5" {name}; sh -c "$0"'), child)
    command.hear("child ready")
    command.process.send_signal(number)
    assert command.end() == 5
    assert command.lines[1:] == [f"child {name}", f"parent {name}"]
    assert orchestrator.holder("trainers") is None


def test_hangup_that_was_ignored_stays_ignored(run, env):
    """nohup timeslice run ..."""
    ignore = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    script = ignore + "os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, *CLI, "--group", "trainers", "--", "sh", "-c", "echo on; read line; echo still on"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate("go\n", TIMEOUT_S)
    assert (process.returncode, out) == (0, "still on\n")


def test_processes_that_the_command_leaves_are_mentioned(run, orchestrator):
    command = run(*shell("(setsid sleep 3600 >/dev/null 2>&1 & echo $!)"))
    assert command.end() == 0
    assert "still there" in command.errors[0]
    assert orchestrator.holder("trainers") is None
    os.kill(int(command.lines[0]), signal.SIGKILL)


# Waiting.


def test_who_holds_the_group_and_the_place_in_the_queue_are_shown(run, orchestrator):
    orchestrator.hold("trainers", "b")
    command = run(*shell("echo started"))
    command.be_told("waiting for group trainers: held by b")
    assert command.lines == []
    orchestrator.free("trainers")
    assert command.end() == 0
    command.be_told(r"group trainers is held after \d+\.\d s")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_signal_while_waiting_leaves_the_queue_and_runs_nothing(run, orchestrator, agent, number):
    orchestrator.hold("trainers", "b")
    command = run(*shell("echo started"))
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting)
    command.process.send_signal(number)
    assert command.end() == 128 + number
    orchestrator.wait_until(lambda: not orchestrator.groups["trainers"].waiting)
    assert command.lines == []
    ended(agent.registered[0].tree.root_pid)


def test_signal_while_the_group_is_given_back_ends_that(run, orchestrator):
    answers = orchestrator.hold_answers("Yield")
    command = run(*shell("exit 3"))
    orchestrator.wait_until(lambda: orchestrator.seen("Yield"))
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 128 + signal.SIGTERM
    answers.set()


def test_time_limit_ends_the_waiting(run, orchestrator):
    orchestrator.hold("trainers", "b")
    command = run("--timeout", "0.5", *shell("echo started"))
    assert command.end() == 1
    assert "timeslice run: acquire of group 'trainers' for job 'a'" in command.errors[-1]
    orchestrator.wait_until(lambda: not orchestrator.groups["trainers"].waiting)
    assert command.lines == []


def test_process_that_is_killed_while_waiting_takes_its_waiting_child_with_it(run, orchestrator, agent):
    orchestrator.hold("trainers", "b")
    command = run(*shell("echo started"))
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting)
    command.process.kill()
    ended(agent.registered[0].tree.root_pid)


def test_orchestrator_that_restarts_is_waited_for(run, orchestrator):
    orchestrator.hold("trainers", "b")
    command = run(*shell("echo started; read line; exit 3"), stdin=subprocess.PIPE)
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting)
    orchestrator.stop()
    orchestrator.start()
    orchestrator.free("trainers")
    command.hear("started")
    orchestrator.stop()
    orchestrator.start()
    command.process.stdin.close()
    assert command.end() == 3
    assert orchestrator.holder("trainers") is None


# What goes wrong.


def test_lease_that_is_lost_is_told_and_asked_for_again(run, orchestrator):
    command = run(*shell("echo started; read line"), stdin=subprocess.PIPE)
    command.hear("started")
    orchestrator.end_lease("trainers", "an operator said so")
    command.be_told(r"the lease on group trainers was lost \(an operator said so\)")
    command.be_told("group trainers is held again; the command goes on")
    assert orchestrator.holder("trainers") == "a"
    command.process.stdin.close()
    assert command.end() == 1
    assert orchestrator.holder("trainers") is None


def test_command_that_ends_while_a_lost_lease_is_asked_for_leaves_the_queue(run, orchestrator):
    command = run(*shell("echo started; read line; exit 4"), stdin=subprocess.PIPE)
    command.hear("started")
    with orchestrator.changed:
        orchestrator.end_lease("trainers", "an operator said so")
        orchestrator.hold("trainers", "b")
    command.be_told("was lost")
    orchestrator.wait_until(lambda: orchestrator.groups["trainers"].waiting)
    command.process.stdin.close()
    assert command.end() == 4
    orchestrator.wait_until(lambda: not orchestrator.groups["trainers"].waiting)
    assert orchestrator.holder("trainers") == "b"


def test_revoke_and_eviction_are_told(run, orchestrator):
    command = run(*shell("echo started; read line"), stdin=subprocess.PIPE)
    command.hear("started")
    lease = orchestrator.groups["trainers"].lease
    revoke = pb2.RevokeNotice(lease=lease, grace_ms=9000, reason="b waits for long")
    orchestrator.notify("a", pb2.SessionNotice(revoke=revoke))
    command.be_told(r"wanted back within 9 s \(b waits for long\)")
    lost = pb2.LeaseLost(lease=lease, reason="the grace is over", will_resume=True)
    orchestrator.notify("a", pb2.SessionNotice(lost=lost))
    command.be_told(r"frozen and saved \(the grace is over\); it goes on where it stands")
    command.process.stdin.close()
    command.end()


def test_cgroup_that_cannot_be_entered_is_done_without(env):
    """As where the kernel, or a manager of cgroups, does not let the process in."""
    script = """
import os
from pathlib import Path
from timeslice.cli import run
from timeslice.cli.run_cgroup import Cgroup
from timeslice.cli.run_plan import plan
from timeslice.cli.run_signals import Signals
run.make_cgroup = lambda pid: Cgroup(Path("/no/such/cgroup"), "")
unset = dict.fromkeys(("target", "agent", "timeout_s"))
wanted = plan(["true"], os.environ, group="g", job="a", holds=True, verbose=True, **unset)
process, cgroup = run._start(wanted, Signals())
print(cgroup)
process.give_up()
"""
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert "known by ancestry" in done.stderr


def test_agent_that_refuses_is_one_line_and_nothing_runs(run, orchestrator, agent):
    agent.refusals.append((grpc.StatusCode.NOT_FOUND, "no group 'trainers' on this node"))
    command = run(*shell("echo started"))
    assert command.end() == 1
    [line] = command.errors
    assert "refused the command's processes: no group 'trainers'" in line
    assert (command.lines, orchestrator.seen("Acquire")) == ([], [])


def test_agent_that_knows_no_trees_is_told_so(run, agent):
    agent.refusals.append((grpc.StatusCode.UNIMPLEMENTED, "register the processes in pids"))
    command = run(*shell("echo started"))
    assert command.end() == 1
    assert "upgrade it" in command.errors[0]


def test_no_agent_is_told_within_seconds(run, short_dir):
    command = run(*shell("echo started"), env={"TIMESLICE_AGENT_ADDR": f"unix:{short_dir}/none.sock"})
    assert command.end() == 1
    assert "timeslice up" in command.errors[-1]
    assert command.lines == []


def test_agent_that_restarts_is_told_of_the_tree_again(run, agent):
    command = run(*shell("echo started; read line"), stdin=subprocess.PIPE)
    command.hear("started")
    agent.stop()
    agent.start()
    agent.wait_until(lambda: len(agent.registered) == 2)
    assert agent.registered[0] == agent.registered[1]


def test_bad_words_are_bad_usage(env):
    for arguments, what in (
        (["--", "true"], "--group is missing"),
        (["--group", "g"], "no command is given"),
        (["--group", "g", "--"], "no command is given"),
        (["--group", "g", "--timeout", "0", "--", "true"], "--timeout"),
        (["--group", "g\n", "--", "true"], "--group must be printable"),
        (["--group", "g", "--job", "j" * 254, "--", "true"], "--job must be printable"),
    ):
        done = subprocess.run([sys.executable, *CLI, *arguments], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert what in done.stderr
        assert done.stderr.count("\n") == 1


# On a terminal.


@pytest.fixture
def on_terminal(env: dict[str, str]) -> Iterator[Callable[..., OnTerminal]]:
    started: list[OnTerminal] = []

    def start(*words: str) -> OnTerminal:
        started.append(OnTerminal([*CLI, "--group", "trainers", "--job", "a", "--", *words], env))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_ctrl_c_reaches_the_command_once_and_not_us(on_terminal, orchestrator):
    script = "trap 'echo heard; n=$((n+1))' INT; echo rea''dy; while [ -z \"$n\" ]; do sleep 0.05; done; exit $((n+10))"
    command = on_terminal("sh", "-c", script)
    command.wait_for("ready")
    command.type("\x03")
    assert command.end() == 11
    assert command.text.count("heard") == 1
    assert orchestrator.holder("trainers") is None


def test_ctrl_c_while_waiting_ends_it(on_terminal, orchestrator):
    orchestrator.hold("trainers", "b")
    command = on_terminal("echo", "never")
    command.wait_for("held by b")
    command.type("\x03")
    assert command.end() == 130
    orchestrator.wait_until(lambda: not orchestrator.groups["trainers"].waiting)
    assert "never" not in command.text.replace("run ", "")


def test_command_reads_from_the_terminal_and_finds_one(on_terminal):
    command = on_terminal("sh", "-c", "test -t 0 && test -t 1 && echo a ter''minal; read line; echo got $line")
    command.wait_for("a terminal")
    command.type("words\n")
    command.wait_for("got words")
    assert command.end() == 0
    assert command.after == command.before


def test_ctrl_z_without_a_shell_to_continue_does_no_harm(on_terminal):
    command = on_terminal("sh", "-c", "echo rea''dy; read line; echo got $line")
    seen = command.wait_for("ready")
    command.type("\x1a")
    seen = command.wait_for("stopped; the group is held on", seen)
    command.type("words\n")
    command.wait_for("got words", seen)
    assert command.end() == 0


def test_shell_stops_and_continues_the_command_as_any_job(env, orchestrator):
    """Ctrl-Z, then fg, in an interactive shell."""
    words = f"{sys.executable} -m timeslice.cli run --group trainers --job a -- sh -c"
    shell = OnTerminal(
        ["-c", "import os; os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"], {**env, "PS1": "prompt> "}
    )
    try:
        shell.wait_for("prompt> ")
        shell.type(f"{words} 'echo rea\"\"dy; read line; echo got $line; exit 9'\n")
        seen = shell.wait_for("ready")
        shell.type("\x1a")
        seen = shell.wait_for("Stopped", seen)
        assert orchestrator.holder("trainers") == "a"
        shell.type("fg\n")
        seen = shell.wait_for("timeslice.cli run", seen)
        shell.type("words\n")
        shell.wait_for("got words", seen)
        shell.type("exit\n")
        shell.end()
    finally:
        shell.kill()
    assert orchestrator.holder("trainers") is None
