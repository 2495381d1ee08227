"""What every command of `timeslice` has in common: help, versions, one line for what is wrong."""

import re
import subprocess
import sys

import pytest

from timeslice.cli.errors import BAD_INPUT, CommandError
from timeslice.cli.main import COMMANDS, main, parser


def timeslice(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "timeslice.cli", *arguments], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_help_has_an_example_and_fits_a_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command.name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"\n  timeslice {command.name}" in shown
    prose = [line for line in shown.splitlines() if not line.startswith("  timeslice ")]
    assert max(map(len, prose)) <= 80


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for name in [*(command.name for command in COMMANDS), "demo"]:
        assert re.search(rf"^    {name} ", shown, re.MULTILINE), name


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"timeslice \S.* \(Python 3\.\d+\.\d+\S*, grpcio \d+\.\d+\.\d+\S*\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no COMMAND is given; see timeslice --help"),
        (["dance"], "'dance'"),
        (["status", "--js"], "unrecognized arguments: --js"),
        (["status", "--target"], "--target: expected one argument; see timeslice status --help"),
    ],
)
def test_what_cannot_be_meant(arguments, text):
    with pytest.raises(CommandError, match=re.escape(text)) as caught:
        main(arguments)
    assert caught.value.exit_code == BAD_INPUT


def test_wrong_argument_is_one_line_and_exit_code_2():
    done = timeslice("status", "--js")
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("timeslice status: unrecognized arguments: --js")


@pytest.mark.parametrize(
    "broken",
    [
        "sys.modules['grpc'] = None",  # Not installed.
        "import grpc; grpc.__version__ = '1.2.3'",  # Too old.
        "from google.protobuf import runtime_version; runtime_version.MAJOR = 3",
    ],
)
def test_missing_or_old_dependency_is_one_line_that_names_the_doctor(broken):
    program = f"import sys; {broken}; from timeslice.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", program, "status"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("timeslice status: ")
    assert line.endswith("; see timeslice doctor")


def test_arguments_are_read_without_loading_grpc():
    """A shell that completes, and --help, must not wait for it."""
    code = "import sys; from timeslice.cli.main import parser; parser(); sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_parser_names_are_unique():
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    parser()
