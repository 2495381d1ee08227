"""Where sockets and state are, which folders are trusted, and who a process is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from timeslice import TimeSliceOrchestratorClient, _settings
from timeslice._processes import identify, node_name, start_time
from timeslice._settings import (
    SettingsError,
    agent_address,
    check_private,
    group_id,
    job_id,
    make_private,
    orchestrator_address,
    pod_labels,
    runtime_dir,
    socket_address,
    state_dir,
)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"TIMESLICE_RUNTIME_DIR": "/r", "XDG_RUNTIME_DIR": "/x"}, "/r"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/timeslice"),
        ({}, f"/tmp/timeslice-{os.getuid()}"),
    ],
)
def test_runtime_folder(env, expected):
    assert runtime_dir(env) == Path(expected)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"TIMESLICE_STATE_DIR": "/s", "XDG_STATE_HOME": "/x"}, "/s"),
        ({"XDG_STATE_HOME": "/x"}, "/x/timeslice"),
        ({"HOME": "/home/a"}, "/home/a/.local/state/timeslice"),
    ],
)
def test_state_folder(env, expected):
    assert state_dir(env) == Path(expected)


def test_addresses_come_from_argument_then_environment_then_this_machine(short_dir):
    env = {"TIMESLICE_RUNTIME_DIR": str(short_dir), "TIMESLICE_ORCH_ADDR": "o:1", "TIMESLICE_AGENT_ADDR": "a:1"}
    assert orchestrator_address("x:1", env) == "x:1"
    assert orchestrator_address(None, env) == "o:1"
    assert agent_address(None, env) == "a:1"
    here = {"TIMESLICE_RUNTIME_DIR": str(short_dir)}
    assert orchestrator_address(None, here) == f"unix:{short_dir}/orchestrator.sock"
    assert agent_address(None, here) == f"unix:{short_dir}/agent.sock"
    with pytest.raises(SettingsError, match="TIMESLICE_ORCH_ADDR 'there' is neither"):
        orchestrator_address(None, {"TIMESLICE_ORCH_ADDR": "there"})


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_in_a_pod_the_clusters_servers_are_found(short_dir):
    env = {**POD, "TIMESLICE_RUNTIME_DIR": str(short_dir / "none")}
    assert orchestrator_address(None, env) == "timesliceorchestrator.timeslice-system:50051"
    assert agent_address(None, env) == "unix:/run/timeslice/agent.sock"


def test_in_a_pod_too_what_was_said_counts_first(short_dir):
    env = {**POD, "TIMESLICE_RUNTIME_DIR": str(short_dir)}
    assert orchestrator_address(f"unix:{short_dir}/orchestrator.sock", env) == f"unix:{short_dir}/orchestrator.sock"
    assert orchestrator_address(None, {**env, "TIMESLICE_ORCH_ADDR": "o:1"}) == "o:1"
    (short_dir / "orchestrator.sock").touch()  # timeslice up in the pod
    assert orchestrator_address(None, env) == f"unix:{short_dir}/orchestrator.sock"


def test_job_and_group_come_from_argument_then_environment_then_the_pods_labels(tmp_path):
    labels = tmp_path / "labels"
    labels.write_text('app="x"\ntimeslice.io/group="trainers"\ntimeslice.io/job-id="run-7"\nempty=""\n')
    env = {"TIMESLICE_JOB_ID": "e", "TIMESLICE_GROUP_ID": "f"}
    assert (job_id("a", env, labels), group_id("b", env, labels)) == ("a", "b")
    assert (job_id(None, env, labels), group_id(None, env, labels)) == ("e", "f")
    assert (job_id(None, {}, labels), group_id(None, {}, labels)) == ("run-7", "trainers")
    assert pod_labels(labels) == {"app": "x", "timeslice.io/group": "trainers", "timeslice.io/job-id": "run-7"}
    assert (job_id(None, {}, tmp_path / "none"), pod_labels(tmp_path)) == (None, {})


def test_a_client_takes_its_job_and_group_from_the_pods_labels(tmp_path, monkeypatch):
    labels = tmp_path / "labels"
    labels.write_text('timeslice.io/group="trainers"\ntimeslice.io/job-id="run-7"\n')
    monkeypatch.setattr(_settings, "POD_LABELS", labels)
    for name in ("TIMESLICE_JOB_ID", "TIMESLICE_GROUP_ID"):
        monkeypatch.delenv(name, raising=False)
    with TimeSliceOrchestratorClient("localhost:1") as client:
        assert (client.job_id, client.group_id) == ("run-7", "trainers")


def test_socket_path_has_a_bound():
    assert socket_address(Path("/" + "x" * 90), "a.sock") == "unix:/" + "x" * 90 + "/a.sock"
    with pytest.raises(SettingsError, match="102 bytes, more than 99; set TIMESLICE_RUNTIME_DIR"):
        socket_address(Path("/" + "x" * 94), "a.sock")


def test_folder_is_made_for_this_user_alone(short_dir):
    folder = short_dir / "a" / "b"
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    make_private(folder)  # and taken as it is


def test_folder_of_another_user_is_refused(short_dir, monkeypatch):
    """The folder is ours; whoever asks is somebody else: no sandbox lets every test make a folder of another user."""
    us = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: us + 1)
    with pytest.raises(SettingsError, match=rf"belongs to user {us}, not to you \({us + 1}\).*TIMESLICE_RUNTIME_DIR"):
        check_private(short_dir)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_folder_that_others_may_write_to_is_refused(short_dir, mode):
    folder = short_dir / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 700 {folder}"):
        make_private(folder)


def test_link_is_not_followed(short_dir):
    (short_dir / "real").mkdir(mode=0o700)
    (short_dir / "link").symlink_to("real")
    with pytest.raises(SettingsError, match="not a folder"):
        check_private(short_dir / "link")


def test_default_socket_in_a_folder_of_others_is_not_used(short_dir):
    short_dir.chmod(0o777)
    with pytest.raises(SettingsError, match="not trusted"):
        orchestrator_address(None, {"TIMESLICE_RUNTIME_DIR": str(short_dir)})


def test_process_is_known_by_pid_and_start_time_whatever_its_name():
    name_itself = "open('/proc/self/comm', 'w').write(') 1 (2) 3'); print(flush=True); input()"
    command = [sys.executable, "-c", name_itself]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        [found] = identify([process.pid], "here")
        assert (found.node, found.pid) == ("here", process.pid)
        own = start_time(os.getpid())
        assert own is not None
        # Clock ticks since boot: later than this process, by less than the test can take.
        assert 0 <= found.start_time - own < 3600 * os.sysconf("SC_CLK_TCK")
        process.communicate("")
    assert start_time(process.pid) is None
    assert identify([process.pid], "here") == []


def test_node_is_named_by_the_environment_or_the_host():
    assert node_name({"TIMESLICE_NODE": "n1"}) == "n1"
    assert node_name({}) == os.uname().nodename
