"""Shell completion, as the shell itself does it: a real bash with the script, and its completion function called."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_event_log import TellingOrchestrator
from timeslice.cli.completing import FOLDERS, completes_folders, completion_of
from timeslice.cli.completion import script
from timeslice.cli.errors import CommandError
from timeslice.cli.main import COMMANDS, parser

# As bash does at Tab: the words and the line so far, then the function that `complete` registered.
COMPLETE = """
eval "$(timeslice completion bash)" || exit 3
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
registered=$(complete -p timeslice) || exit 4
function=${registered##*-F }
"${function%% *}" timeslice "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def orchestrator(short_dir: Path) -> Iterator[TellingOrchestrator]:
    server = TellingOrchestrator(f"unix:{short_dir}/o.sock", "trainers", "samplers")
    server.start()
    yield server
    if server._server is not None:
        server.stop()


@pytest.fixture
def complete(orchestrator, short_dir):
    """What bash offers after these words; the last one is unfinished."""
    bash = shutil.which("bash")
    assert bash is not None, "this test needs bash"
    command = short_dir / "timeslice"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m timeslice.cli "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYTHONPATH": path, "PATH": f"{short_dir}{os.pathsep}{os.environ['PATH']}"}
    env["TIMESLICE_ORCH_ADDR"] = orchestrator.address

    def complete(*words: str) -> list[str]:
        done = subprocess.run(
            [bash, "--norc", "-c", COMPLETE, "bash", "timeslice", *words],
            env=env, cwd=short_dir, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return complete


def test_commands(complete):
    offered = complete("")
    assert sorted(offered) == sorted([*(c.name for c in COMMANDS), "demo"])
    assert complete("wa") == ["watch"]


def test_options(complete):
    assert complete("watch", "--j") == ["--json"]
    assert {"--group", "--state-dir", "--listen"} <= set(complete("up", "--"))
    assert "--groups" not in complete("completion", "--")  # For the scripts, not for people.


def test_actions_of_a_command(complete):
    assert sorted(complete("evict", "")) == ["clear-fault", "drop-waiter", "end-lease", "forget-node", "kill"]
    assert complete("evict", "kill", "--rea") == ["--reason"]


def test_groups_are_asked_of_the_orchestrator(complete):
    assert complete("watch", "t") == ["trainers"]
    assert sorted(complete("watch", "trainers", "")) == ["samplers", "trainers"]
    assert complete("evict", "kill", "s") == ["samplers"]


def test_silent_orchestrator_offers_nothing_and_says_nothing(complete, orchestrator):
    orchestrator.stop()
    assert complete("watch", "t") == []


def test_folders(complete, short_dir):
    (short_dir / "states").mkdir()
    assert complete("up", "--state-dir", "st") == ["states"]


def test_shells(complete):
    assert complete("completion", "") == ["bash", "zsh", "fish"]


def test_marks_are_for_shells_alone():
    action = completes_folders(parser().add_argument("--somewhere"))
    assert completion_of(action) == FOLDERS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_asks_for_groups(shell):
    assert "timeslice completion --groups" in script(shell, parser())


def test_without_shtab_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(CommandError, match=r"pip install 'timeslice-rl\[cli\]'"):
        script("bash", parser())
