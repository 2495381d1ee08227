"""`timeslice up` with the real orchestrator and agent on mock GPUs: started, used by jobs, stopped without a trace."""

import contextlib
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from live import Running, children_of, processes_of
from mock_machine import MockMachine
from timeslice import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError, OrchestratorLeaseLostError
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

UP = ["-m", "timeslice.cli", "up"]


@pytest.fixture
def machine(short_dir: Path):
    with MockMachine(short_dir) as machine:
        yield machine


@pytest.fixture
def environment(machine):
    return machine.env


@pytest.fixture
def start(machine):
    """Starts commands; what still runs at the end is stopped."""
    return machine.start


@pytest.fixture
def running_pool(start, short_dir) -> str:
    """The address of an orchestrator with the group `pool`."""
    up(start, "--group", "pool=0", "--group", "rest=1")
    return f"unix:{short_dir}/run/orchestrator.sock"


def up(start, *arguments: str) -> Running:
    command = start(*UP, *arguments)
    command.wait_for("Ctrl-C stops it")
    return command


def status(environment: dict[str, str]) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "timeslice.cli", "status", "--json"],
        env=environment, check=True, stdout=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    return {group["group"]: group for group in json.loads(done.stdout)["groups"]}


# A job with memory on a GPU: a counter, which it reads, raises and writes back whenever it holds the group.
JOB = """
import os, sys
from cuda.bindings import driver
from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload

def checked(result):
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if values else None

job = sys.argv[1]
handle = register_workload(None, job, "pool", pids=[os.getpid()])
client = TimeSliceOrchestratorClient(job_id=job, group_id="pool")
address = None
for line in sys.stdin:
    with client.on_accelerators(timeout_sec=50):
        if address is None:
            checked(driver.cuInit(0))
            checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(0))))))
            address = checked(driver.cuMemAlloc(20 << 20))
            checked(driver.cuMemsetD8(address, 0, 20 << 20))
        value = bytearray(4)
        checked(driver.cuMemcpyDtoH(value, address, 4))
        count = int.from_bytes(value, "little") + 1
        checked(driver.cuMemcpyHtoD(address, count.to_bytes(4, "little"), 4))
        print(f"{job} counted {count}", flush=True)
client.close()
handle.close()
"""


HOLD = """
import os, sys
from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload
register_workload(None, sys.argv[1], "pool", pids=[os.getpid()])
with TimeSliceOrchestratorClient(job_id=sys.argv[1], group_id="pool") as client:
    client.acquire()
    print("holds", flush=True)
    sys.stdin.readline()
"""


def test_two_jobs_that_do_not_fit_together_take_turns(environment, start):
    up(start, "--group", "pool=0", "--group", "rest=1")
    jobs = {name: start("-c", JOB, name) for name in ("a", "b")}
    for turn in range(1, 4):
        for name, job in jobs.items():  # 20 MiB each, 32 MiB on the device: one must be saved for the other to run.
            job.say()
            job.wait_for(f"{name} counted {turn}")
    pool = status(environment)["pool"]
    assert (pool["state"], pool["holder"], pool["handoffs_total"] >= 5) == ("IDLE_YIELDED", None, True)
    assert {c["job"]: c["state"] for c in pool["contexts"]} == {"a": "SAVED", "b": "RUNNING"}
    for job in jobs.values():
        job.process.stdin.close()
        assert job.process.wait(60) == 0, job.errors
        assert job.errors == []


def test_ctrl_c_leaves_no_process_and_no_socket(environment, start):
    command = up(start)
    runtime, servers = Path(environment["TIMESLICE_RUNTIME_DIR"]), children_of(command.process.pid)
    assert sorted(servers) == ["orchestrator", "snapshot_agent_server"]
    assert (runtime / "orchestrator.sock").exists()
    assert runtime.stat().st_mode & 0o777 == 0o700
    assert len({os.getpgid(pid) for pid in servers.values()}) == 1
    command.interrupt()
    assert command.end() == 130
    assert command.errors == []
    assert not runtime.exists()
    assert processes_of(environment) == []


def test_sigterm_ends_it_with_success_and_a_second_start_finds_its_state(environment, start):
    for _ in range(2):
        command = up(start)
        command.process.terminate()
        assert command.end() == 0, command.errors
        assert processes_of(environment) == []


def test_program_gets_one_line_when_all_is_ready(environment, start):
    command = start(*UP, "--json", "--group", "pool=0,1")
    ready = json.loads(command.wait_for("{"))
    assert (ready["ready"], ready["pid"], ready["node"]) == (True, command.process.pid, "here")
    assert ready["orchestrator"] == f"unix:{environment['TIMESLICE_RUNTIME_DIR']}/orchestrator.sock"
    assert [a["groups"] for a in ready["accelerators"]] == [["pool"], ["pool"]]
    assert sorted(status(environment)) == ["pool"]
    command.interrupt()
    assert command.end() == 130
    assert len(command.seen) == 1
    assert command.errors == [f"{verb}ing the {server} ..." for verb, server in (
        ("start", "snapshot agent"), ("start", "orchestrator"), ("stopp", "orchestrator"), ("stopp", "snapshot agent"),
    )]  # fmt: skip


def test_what_becomes_of_unsaveable_jobs_is_the_orchestrators_to_know(start):
    policies = ["--on-unsaveable", "wait", "--on-unsaveable", "pool=kill"]
    command = up(start, "--group", "pool=0", "--group", "rest=1", *policies, "--kill-grace", "5")
    pid = children_of(command.process.pid)["orchestrator"]
    told = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    at = told.index("--on-unsaveable")
    assert told[at : at + 4] == policies
    assert told[told.index("--kill-grace-s") + 1] == "5.0"


def test_without_groups_each_gpu_is_one(environment, start):
    up(start)
    groups = status(environment)
    assert sorted(groups) == ["gpu0", "gpu1"]
    [accelerator] = groups["gpu0"]["accelerators"]
    assert accelerator.startswith("here/GPU-")
    assert groups["gpu0"]["state"] == "IDLE"


def test_status_shows_holder_and_waiters(environment, start):
    up(start, "--group", "pool=0,1")
    holder = start("-c", HOLD, "a")
    holder.wait_for("holds")
    waiter = start("-c", HOLD, "b")
    while not status(environment)["pool"]["waiters"]:
        assert waiter.process.poll() is None, waiter.errors
    command = [sys.executable, "-m", "timeslice.cli", "status"]
    shown = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    row = next(line for line in shown.splitlines() if line.startswith("pool"))
    assert row.split()[:4] == ["pool", "LOCKED", "a", "b"]
    holder.say()
    waiter.wait_for("holds")
    assert status(environment)["pool"]["holder"] == "b"
    waiter.say()


def test_killed_holder_is_followed_by_the_next_in_line(environment, start):
    up(start, "--group", "pool=0", "--group", "rest=1")
    holder = start("-c", HOLD, "a")
    holder.wait_for("holds")
    waiter = start("-c", HOLD, "b")
    while not status(environment)["pool"]["waiters"]:
        assert waiter.process.poll() is None, waiter.errors
    holder.process.kill()
    killed = time.monotonic()
    waiter.wait_for("holds")
    assert time.monotonic() - killed < 15  # far below the session's time to live of 30 s
    waiter.say()


def test_holder_whose_lease_an_operator_ended_is_told(running_pool):
    with (
        TimeSliceOrchestratorClient(running_pool, "a", "pool") as client,
        grpc.insecure_channel(client.target) as channel,
    ):
        client.acquire()
        stub = pb2_grpc.TimeSliceOrchestratorServiceStub(channel)
        request = pb2.EvictRequest(
            group_id="pool", job_id="a", reason="maintenance", action=pb2.EvictRequest.ACTION_END_LEASE
        )
        assert stub.Evict(request, timeout=30).actions
        with pytest.raises(OrchestratorLeaseLostError, match="maintenance"):
            client.release()
        assert client.acquire().success


def test_second_start_is_refused_and_names_the_first(environment, start):
    command = up(start)
    second = start(*UP)
    assert second.end() == 1
    [error] = second.errors
    assert f"runs already (pid {command.process.pid})" in error
    assert status(environment)


@pytest.mark.parametrize("module", ["orchestrator", "snapshot_agent_server"])
def test_death_of_one_server_stops_the_other_and_is_said(environment, start, module):
    command = up(start)
    os.kill(children_of(command.process.pid)[module], signal.SIGKILL)
    assert command.end() == 1
    name = module.removesuffix("_server").replace("_", " ")
    assert any(f"timeslice up: the {name} ended (signal 9)" in line for line in command.errors)
    assert processes_of(environment) == []
    assert not Path(environment["TIMESLICE_RUNTIME_DIR"]).exists()


def test_second_ctrl_c_does_not_wait_for_a_server_that_hangs(environment, start):
    command = up(start)
    os.kill(children_of(command.process.pid)["orchestrator"], signal.SIGSTOP)
    command.interrupt()
    command.wait_for("stopping the orchestrator")
    command.interrupt()
    assert command.end() == 130
    assert processes_of(environment) == []
    assert not Path(environment["TIMESLICE_RUNTIME_DIR"]).exists()


def test_killed_up_takes_its_servers_along(environment, start):
    command = up(start)
    servers = children_of(command.process.pid)
    descriptors = [os.pidfd_open(pid) for pid in servers.values()]
    command.process.kill()
    command.end()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)
    up(start)  # nothing of it stands in the way of the next


def test_orchestrator_that_restarts_is_a_delay_for_a_job(environment, start):
    """The job is not told: its next call waits until the orchestrator is back."""
    command = up(start, "--group", "pool=0", "--group", "rest=1")
    job = start("-c", JOB, "a")
    job.say()
    job.wait_for("a counted 1")
    command.process.terminate()
    assert command.end() == 0
    job.say()
    up(start, "--group", "pool=0", "--group", "rest=1")
    job.wait_for("a counted 2")
    assert job.process.poll() is None


# Bad input: one line that says what to do, exit code not 0, nothing started.


def refused(environment, *arguments: str, code: int = 2) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "timeslice.cli", *arguments],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not Path(environment["TIMESLICE_RUNTIME_DIR"]).exists()
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--group", "trainers"], "'trainers' is not NAME=GPU"),
        (["--group", "=0"], "is not NAME=GPU"),
        (["--group", "a="], "is not NAME=GPU"),
        (["--group", "a=first"], "is not NAME=GPU"),
        (["--group", "a b=0"], "is not NAME=GPU"),
        (["--group", "a" * 254 + "=0"], "is not NAME=GPU"),
        (["--group", "a=0", "--group", "a=1"], "given twice"),
        (["--group", "a=0", "--group", "b=1,0"], "in one group only"),
        (["--node", "a,b"], "node name"),
        (["--listen", "nowhere"], "--listen 'nowhere' is neither"),
        (["--listen", "unix:/tmp/x"], "is not HOST:PORT"),
        (["--listen", "0.0.0.0:1"], "say --insecure-listen"),
        (["--insecure-listen"], "says nothing without --listen"),
        (["--on-unsaveable", "perhaps"], "'perhaps' is neither wait nor kill, alone or as GROUP=POLICY"),
        (["--on-unsaveable", "=kill"], "alone or as GROUP=POLICY"),
        (["--group", "a=0", "--on-unsaveable", "b=kill"], "there is no --group b"),
        (["--kill-grace", "0"], "above 0"),
        (["--kill-grace", "soon"], "invalid float value: 'soon'; see timeslice up --help"),
    ],
)
def test_arguments_that_cannot_be(environment, arguments, text):
    assert text in refused(environment, "up", *arguments)


def test_gpu_that_is_not_there(environment):
    assert "7" in refused(environment, "up", "--group", "a=7")


def test_port_in_use(environment, start):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        error = refused(environment, "up", "--listen", f"127.0.0.1:{port}")
    assert str(port) in error


@pytest.mark.parametrize("store", ["orchestrator.db", "agent.db"])
def test_store_of_a_newer_version(environment, start, store):
    command = up(start)
    command.process.terminate()
    assert command.end() == 0
    path = Path(environment["TIMESLICE_STATE_DIR"]) / store
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 999")
    assert "999" in refused(environment, "up")


@pytest.mark.parametrize("store", ["orchestrator.db", "agent.db"])
def test_corrupt_store(environment, store):
    folder = Path(environment["TIMESLICE_STATE_DIR"])
    folder.mkdir(mode=0o700)
    (folder / store).write_bytes(b"not a store" * 1000)
    error = refused(environment, "up")
    assert str(folder / store) in error
    assert (folder / store).read_bytes().startswith(b"not a store")


@pytest.mark.parametrize(
    ("job_id", "group_id", "code", "text"),
    [
        ("a", "nowhere", "NOT_FOUND", "nowhere"),
        ("a" * 254, "pool", "INVALID_ARGUMENT", "job_id"),
        ("a" * 10_000_000, "pool", "INVALID_ARGUMENT", "job_id"),
        ("a\x07", "pool", "INVALID_ARGUMENT", "job_id"),
        ("a", "g" * 10_000_000, "INVALID_ARGUMENT", "group_id"),
    ],
)
def test_ids_that_cannot_be_are_refused_by_name(running_pool, job_id, group_id, code, text):
    with TimeSliceOrchestratorClient(running_pool, job_id, group_id) as client:
        with pytest.raises(OrchestratorError, match=text) as caught:
            client.acquire(timeout_sec=30)
        assert caught.value.code == code
        assert len(str(caught.value)) < 1000


def test_missing_driver(environment):
    environment["LD_LIBRARY_PATH"] = ""
    error = refused(environment, "up", code=1)
    assert "no NVIDIA driver" in error
    assert "timeslice up --mock 2x80GiB" in error


@pytest.fixture
def without_driver(environment):
    """Neither a driver nor mock GPUs in sight; the mock is installed."""
    environment.update(LD_LIBRARY_PATH="")
    del environment["TIMESLICE_GPU_MOCK"]
    return environment


def test_mock_gpus_are_made_and_used_again(without_driver, start):
    for gpus in ("2x64MiB", "1x32MiB"):
        command = start(*UP, "--mock", gpus, "--group", "pool=0,1")
        command.wait_for("gpu-mock run -- COMMAND")
        for index in (0, 1):
            line = command.wait_for(f"  GPU {index} ")
            assert "pool (Mock" in line
            assert "64 MiB" in line
        command.wait_for("Ctrl-C stops it")
        command.interrupt()
        assert command.end() == 130
    assert any("there already" in line for line in command.seen)


def test_mock_behind_links_is_entered_once(without_driver, start, tmp_path):
    """A folder of links to its files, as runfiles are: it once began anew for ever, never seeing that it was there."""
    for file in Path(without_driver["GPU_MOCK_LIB_DIR"]).iterdir():
        (tmp_path / file.name).symlink_to(file.resolve())
    without_driver["GPU_MOCK_LIB_DIR"] = str(tmp_path)
    command = start(*UP, "--mock", "1x32MiB", "--group", "pool=0")
    command.wait_for("Ctrl-C stops it")
    assert len([line for line in command.seen if "gpu-mock run -- COMMAND" in line]) == 1
    command.interrupt()
    assert command.end() == 130


def test_mock_gpus_that_cannot_be(without_driver):
    assert "--mock eighty: " in refused(without_driver, "up", "--mock", "eighty")


def test_mock_that_is_not_installed(without_driver):
    del without_driver["GPU_MOCK_LIB_DIR"]
    error = refused(without_driver, "up", "--mock", "2x64MiB", code=1)
    assert "pip install 'timeslice-rl[local]'" in error


def test_socket_path_that_is_too_long(environment):
    environment["TIMESLICE_RUNTIME_DIR"] += "x" * 100
    assert "TIMESLICE_RUNTIME_DIR" in refused(environment, "up")


def test_folder_of_others(environment):
    folder = Path(environment["TIMESLICE_STATE_DIR"])
    folder.mkdir()
    folder.chmod(0o777)
    assert f"chmod 700 {folder}" in refused(environment, "up")


def test_folder_that_cannot_be_made(environment):
    error = refused(environment, "up", "--state-dir", "/proc/nothing/state")
    assert "cannot make folder /proc/nothing/state" in error


def test_status_without_an_orchestrator(environment):
    error = refused(environment, "status", code=1)
    assert "no orchestrator answers" in error
    assert "timeslice up" in error


def test_status_of_a_wrong_address(environment):
    assert "neither unix:PATH nor HOST:PORT" in refused(environment, "status", "--target", "here")
