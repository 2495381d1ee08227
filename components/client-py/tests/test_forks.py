"""Row 27: a process that forks after it used the client, and its children. Each in a process of its own."""

import os
import subprocess
import sys

import pytest

from fake_agent import FakeAgent

BEGIN = """
import multiprocessing, os, signal, sys, threading, time
from timeslice import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError

ADDRESS = {address!r}
client = TimeSliceOrchestratorClient(ADDRESS, "parent", "trainers")

def fork(function, *args):
    "Runs the function in a child, which ends without the interpreter's own end; returns its pid."
    pid = os.fork()
    if pid == 0:
        signal.alarm(15)  # A hang is a failure.
        try:
            function(*args)
        except BaseException as err:
            print(type(err).__name__, err, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid

def code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(script: str, *, quiet: bool = True, **env: str) -> str:
    """The script's output, once it has ended well; `quiet` if grpc has no line of its own to say about its forks."""
    done = subprocess.run(
        # Later Pythons warn of every fork of a process with threads.
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", script],
        env={k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"} | env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not (quiet and "fork_posix" in done.stderr), done.stderr
    assert "unreachable" not in done.stderr
    return done.stdout


def begin(orchestrator) -> str:
    return BEGIN.format(address=orchestrator.address)


def test_twenty_children_of_a_client_in_use_work_and_so_does_the_parent(orchestrator):
    script = begin(orchestrator) + """
client.acquire()

def child(number):
    own = client if number % 2 else TimeSliceOrchestratorClient(ADDRESS)
    assert own.list_groups() == ["trainers", "samplers"]
    with own.on_accelerators(f"child-{number}", "samplers"):
        pass
    own.close()

started = time.monotonic()
children = [fork(child, number) for number in range(20)]
assert time.monotonic() - started < 10, "grpc halts its threads only once a second, if nobody nudges them"
assert [code_of(pid) for pid in children] == [0] * 20
client.release()
client.close()
"""
    run(script)
    assert sorted(r.job_id for r in orchestrator.seen("Yield")) == sorted(
        ["parent", *(f"child-{number}" for number in range(20))]
    )
    assert orchestrator.groups["trainers"].last_token == 1
    assert len({s.job_id for s in orchestrator.sessions.values()}) == 21


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit()", "raise SystemExit(0)", "pass"])
def test_child_that_merely_exits_does_nothing_to_the_parents_lease(orchestrator, end):
    """`sys.exit` leaves the block by an exception, `pass` by its end; either runs what is done at a program's end."""
    script = begin(orchestrator) + f"""
def parent(pid):
    assert code_of(pid) == 0
    assert client.get_status().group.locking_job == "parent"

with client.on_accelerators():
    pid = os.fork()
    if pid == 0:
        {end}
    else:
        parent(pid)
if pid != 0:
    print("parent is done", flush=True)
"""
    assert run(script) == "parent is done\n"
    assert [r.job_id for r in orchestrator.seen("Yield")] == ["parent"]
    assert len(orchestrator.sessions) == 1


def test_session_does_not_even_notice_a_fork(orchestrator):
    script = begin(orchestrator) + """
client.acquire()
for _ in range(3):
    assert code_of(fork(lambda: None)) == 0
client.acquire(group_id="samplers")
client.close()
"""
    run(script)
    assert len(orchestrator.seen("Session")) == 1
    assert [r.fencing_token for r in orchestrator.seen("Yield")] == [1, 1]


def test_child_cannot_give_back_what_its_parent_holds(orchestrator):
    script = begin(orchestrator) + """
client.acquire()

def child():
    try:
        client.release()
    except OrchestratorError as err:
        assert "by the process that this one was forked from" in str(err), err
    else:
        os._exit(3)

assert code_of(fork(child)) == 0
client.release()
"""
    run(script)
    assert len(orchestrator.seen("Yield")) == 1


def test_childs_session_does_not_live_by_the_processes_that_its_parent_registered(orchestrator):
    script = begin(orchestrator) + """
from timeslice._processes import REGISTERED, identify, node_name

REGISTERED.add("child", identify([os.getpid()], node_name(os.environ)))
client.acquire("child", "samplers")
client.release("child", "samplers")

def child():
    client.acquire("child", "samplers")
    client.close()

assert code_of(fork(child)) == 0
"""
    run(script)
    of_parent, of_child = (s.requests[0][1].processes for s in orchestrator.sessions.values() if s.job_id == "child")
    assert len({process.pid for process in (*of_parent, *of_child)}) == len(of_child) + 1 == 2


def test_client_that_was_closed_before_the_fork_is_closed_in_the_child(orchestrator):
    script = begin(orchestrator) + """
client.list_groups()
client.close()

def child():
    try:
        client.list_groups()
    except OrchestratorError as err:
        assert "was closed" in str(err), err
    else:
        os._exit(3)

assert code_of(fork(child)) == 0
"""
    run(script)


def test_children_of_a_registered_process_that_asks_its_agent(orchestrator, short_dir):
    """A registration keeps a stream open too, and an agent's client that a child inherits works there."""
    agent = FakeAgent(f"unix:{short_dir}/a.sock")
    agent.start()
    script = begin(orchestrator) + f"""
from timeslice import SnapshotAgentClient
from timeslice.snapshot_agent import register_workload

handle = register_workload({agent.address!r}, "parent", pids=[os.getpid()])
asking = SnapshotAgentClient({agent.address!r})
asking.status()
client.acquire()
started = time.monotonic()
children = [fork(asking.status) for _ in range(10)]
assert time.monotonic() - started < 5, "grpc halts its threads only once a second, if nobody nudges them"
assert [code_of(pid) for pid in children] == [0] * 10
asking.status()
client.close()
handle.close()
"""
    run(script)
    assert len(agent.registered) == 1
    agent.stop()


def test_children_of_multiprocessing_work(orchestrator):
    script = begin(orchestrator) + """
def child(number):
    with client.on_accelerators(f"child-{number}", "samplers"):
        pass

with client.on_accelerators():
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=child, args=(number,)) for number in range(4)]
    for process in children:
        process.start()
    for process in children:
        process.join(15)
    assert [process.exitcode for process in children] == [0] * 4
"""
    run(script)
    assert [r.job_id for r in orchestrator.seen("Yield")][-1] == "parent"


def test_fork_in_the_middle_of_another_threads_acquire(orchestrator):
    script = begin(orchestrator) + """
client.acquire()
waiting = threading.Thread(target=client.acquire, args=("waiter", "samplers"))
TimeSliceOrchestratorClient(ADDRESS, "stranger", "samplers", use_sessions=False).acquire()
waiting.start()
while client.get_status("samplers").group.waiter_queue_depth < 1:
    pass

def child():
    assert client.get_status("samplers").group.waiter_queue_depth == 1
    client.acquire("child", "third")
    client.close()

children = [fork(child) for _ in range(3)]
assert [code_of(pid) for pid in children] == [0] * 3
assert waiting.is_alive()
TimeSliceOrchestratorClient(ADDRESS, "stranger", "samplers", use_sessions=False).release()
waiting.join(15)
assert client.get_status("samplers").group.locking_job == "waiter"
client.close()
"""
    orchestrator.add_group("third")
    run(script)
    assert len({r.request_id for r in orchestrator.seen("Acquire") if r.job_id == "waiter"}) == 1


UNSUPPORTED = """
client.acquire()

def child():
    try:
        {use}
    except Exception as err:
        text = str(err)
        assert "GRPC_ENABLE_FORK_SUPPORT=1" in text and "spawn" in text and str(os.getppid()) in text, text
    else:
        os._exit(3)
    client.close()

children = [fork(child) for _ in range(5)]
assert [code_of(pid) for pid in children] == [0] * 5
client.release()
client.close()
"""


@pytest.mark.parametrize(
    "use",
    [
        "client.acquire()",
        "TimeSliceOrchestratorClient(ADDRESS, 'child', 'samplers').list_groups()",
        "from timeslice import SnapshotAgentClient; SnapshotAgentClient('localhost:1').status()",
    ],
)
@pytest.mark.parametrize("env", [{}, {"GRPC_ENABLE_FORK_SUPPORT": "0"}])
def test_child_is_told_clearly_where_grpc_was_imported_without_fork_support(orchestrator, use, env):
    first = "" if env else "import grpc\n"
    script = first + begin(orchestrator) + UNSUPPORTED.format(use=use)
    run(script, quiet=False, **env)
    assert len(orchestrator.seen("Yield")) == 1


def test_child_works_where_grpc_was_imported_early_but_not_used_before_the_fork(orchestrator):
    script = "import grpc\n" + begin(orchestrator) + """
def child():
    with TimeSliceOrchestratorClient(ADDRESS, "child", "samplers").on_accelerators():
        pass

assert code_of(fork(child)) == 0
with client.on_accelerators():
    pass
"""
    run(script)


def test_child_is_told_clearly_where_others_used_grpc_without_fork_support(orchestrator):
    script = "import grpc\n" + begin(orchestrator) + """
foreign = grpc.insecure_channel(ADDRESS)
try:
    foreign.unary_unary("/some.Service/Call")(b"", timeout=5)
except grpc.RpcError:
    pass

def child():
    try:
        client.list_groups()
    except OrchestratorError as err:
        assert "without fork support" in str(err)
    else:
        os._exit(3)

assert code_of(fork(child)) == 0
"""
    run(script, quiet=False)


def test_choice_of_the_user_is_kept():
    for value in ("0", "1"):
        script = f"import os, timeslice; assert os.environ['GRPC_ENABLE_FORK_SUPPORT'] == '{value}'"
        run(script, GRPC_ENABLE_FORK_SUPPORT=value)
