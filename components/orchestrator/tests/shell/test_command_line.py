"""Bad input: one line that says what to do, status 2, and nothing lost."""

import os
import socket
import sqlite3
from pathlib import Path

import pytest

from orchestrator_process import OrchestratorProcess


async def refused(*flags: str, env: dict[str, str] | None = None) -> str:
    process = OrchestratorProcess(flags, {"HOME": "/nonexistent", **(env or {})})
    await process.spawn()
    status = await process.ended()
    assert (status, process.lines) == (2, []), process.errors
    line = process.errors.removesuffix("\n")
    assert line.startswith("orchestrator: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--nonsense"], "--nonsense"),
        (["--listen"], "--listen"),
        (["--listen", "nowhere"], "neither unix:PATH nor HOST:PORT"),
        (["--listen", "unix:/" + "a" * 120], "longer than 99 bytes"),
        (["--listen", "0.0.0.0:7000"], "--insecure-listen"),
        (["--listen", "example.org:7000"], "--insecure-listen"),
        (["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"], "twice"),
        (["--agent", "n1"], "NODE=ADDR"),
        (["--agent", "n1=unix:/a,group=g:0,group=h:0"], "accelerator '0'"),
        (["--session-ttl-s", "soon"], "--session-ttl-s is 'soon'"),
        (["--session-ttl-s", "-1"], "session_ttl_s is -1"),
        (["--log-level", "loud"], "loud"),
        (["--agent-ca", "/a", "--agent-cert", "/b"], "all three or none"),
        (["--agent-ca", "/a", "--agent-cert", "/b", "--agent-key", "/c"], "--agent-ca /a: cannot read it"),
    ],
)
async def test_a_wrong_flag_is_named(flags: list[str], says: str) -> None:
    assert says in await refused(*flags)


async def test_a_wrong_environment_variable_is_named(tmp_path: Path) -> None:
    line = await refused("--state-dir", f"{tmp_path}", env={"TIMESLICE_ORCH_MAX_TRIES": "many"})
    assert "TIMESLICE_ORCH_MAX_TRIES is 'many'" in line


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = await refused("--listen", address, "--state-dir", f"{tmp_path}/s")
        assert f"cannot listen on {address!r}" in line


async def test_a_socket_in_use_is_not_taken_over_but_a_dead_one_is(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/o.sock"
    first = OrchestratorProcess(["--listen", address, "--state-dir", f"{tmp_path}/s1"])
    await first.start()
    assert "in use" in await refused("--listen", address, "--state-dir", f"{tmp_path}/s2")
    await first.kill()
    assert "o.sock" in os.listdir(tmp_path)
    await first.start()
    assert await first.terminate() == 0


async def test_a_state_folder_in_use_is_named(tmp_path: Path) -> None:
    first = OrchestratorProcess(["--listen", f"unix:{tmp_path}/1.sock", "--state-dir", f"{tmp_path}/s"])
    await first.start()
    line = await refused("--listen", f"unix:{tmp_path}/2.sock", "--state-dir", f"{tmp_path}/s")
    assert "in use by another orchestrator" in line
    assert await first.terminate() == 0


async def test_a_file_where_the_socket_should_be_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "o.sock").write_text("precious")
    assert "not a socket" in await refused("--listen", f"unix:{tmp_path}/o.sock", "--state-dir", f"{tmp_path}/s")
    assert (tmp_path / "o.sock").read_text() == "precious"


@pytest.mark.parametrize("flag", ["--state-dir", "--listen"])
async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").touch()
    places = {"--state-dir": f"{tmp_path}/s", "--listen": f"unix:{tmp_path}/o.sock"}
    places[flag] = f"{tmp_path}/file/s" if flag == "--state-dir" else f"unix:{tmp_path}/file/o.sock"
    line = await refused("--listen", places["--listen"], "--state-dir", places["--state-dir"])
    assert f"{tmp_path}/file" in line
    assert f"choose another {flag}" in line


async def test_a_newer_and_a_damaged_store_are_refused_and_kept(tmp_path: Path) -> None:
    flags = ["--listen", f"unix:{tmp_path}/o.sock", "--state-dir", f"{tmp_path}/s"]
    process = OrchestratorProcess(flags)
    await process.start()
    assert await process.terminate() == 0
    path = tmp_path / "s" / "orchestrator.db"
    good = path.read_bytes()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    newer = path.read_bytes()
    assert "newer" in await refused(*flags)
    assert path.read_bytes() == newer
    path.write_bytes(good[:100] + b"\xff" * 3000)
    damaged = path.read_bytes()
    assert "damaged" in await refused(*flags)
    assert path.read_bytes() == damaged
    path.write_bytes(good)
    await process.start()
    assert await process.terminate() == 0


async def test_help_names_every_setting_and_its_variable() -> None:
    process = OrchestratorProcess(["--help"])
    await process.spawn_for_text()
    assert await process.ended() == 0
    for part in ("--listen", "--agent", "--state-dir", "--session-ttl-s", "TIMESLICE_ORCH_SESSION_TTL_S", "--help"):
        assert part in process.text


async def test_it_says_where_it_listens_and_serves_loopback_too(tmp_path: Path) -> None:
    process = OrchestratorProcess(
        ["--listen", f"unix:{tmp_path}/run/o.sock", "--listen", "127.0.0.1:0", "--state-dir", f"{tmp_path}/s"])
    await process.start()
    [ready] = [line for line in process.lines if line["msg"] == "orchestrator ready"]
    unix, loopback = ready["listen"]
    assert unix == f"unix:{tmp_path}/run/o.sock"
    assert int(loopback.rpartition(":")[2]) > 0
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "o.sock").stat().st_mode & 0o077 == 0
    assert await process.terminate() == 0


async def test_a_failure_inside_is_logged_with_what_happened_before_it(tmp_path: Path) -> None:
    """A library that breaks under the orchestrator, as a bug of its own would: one log, exit status 1."""
    (tmp_path / "sitecustomize.py").write_text(
        "from orchestrator.core import orchestrator\n"
        "def broken(self, event, now): raise RuntimeError('broken core')\n"
        "orchestrator.Orchestrator.handle = broken\n")
    process = OrchestratorProcess(
        ["--listen", f"unix:{tmp_path}/o.sock", "--state-dir", f"{tmp_path}/s"], first_path=str(tmp_path))
    await process.spawn()
    assert await process.ended() == 1
    assert process.errors == ""
    assert [line["msg"] for line in process.lines][-1].startswith("orchestrator failed")
    assert "broken core" in process.lines[-1]["exception"]
    assert "Started" in process.lines[0]["event"]
