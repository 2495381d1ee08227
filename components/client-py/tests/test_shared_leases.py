"""Row 41: two processes of one job and the real orchestrator: one lease, both told so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from live import Running
from mock_machine import MockMachine
from timeslice import TimeSliceOrchestratorClient

PROCESS = """
import sys
from timeslice import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorLeaseLostError

def say(text):
    sys.stdout.write(f"{text}\\n")  # In one piece: callbacks come on a thread of their own.
    sys.stdout.flush()

client = TimeSliceOrchestratorClient(
    job_id="a",
    group_id="pool",
    on_shared=lambda event: say(f"shared: owner {event.is_owner}, attached {event.attached}"),
    on_lost=lambda event: say(f"lost: token {event.fencing_token}, will resume {event.will_resume}"),
)
for line in sys.stdin:
    if line == "acquire\\n":
        say(f"granted {client.acquire(timeout_sec=30).success}")
    else:
        try:
            client.release()
            say("released")
        except OrchestratorLeaseLostError as err:
            say(f"raised: {err}")
client.close()
"""

AIO_PROCESS = (
    "import asyncio\nasync def main():\n"
    + "".join(f"    {line}\n" for line in PROCESS.splitlines())
    .replace("from timeslice import", "from timeslice.aio import")
    .replace("client.acquire(timeout_sec=30).success", "(await client.acquire(timeout_sec=30)).success")
    .replace("for line in sys.stdin:", "while line := await asyncio.to_thread(sys.stdin.readline):")
    .replace(" client.release()", " await client.release()")
    .replace("client.close()", "await client.close()")
    + "asyncio.run(main())\n"
)


@pytest.fixture
def machine(short_dir: Path) -> Iterator[MockMachine]:
    with MockMachine(short_dir) as machine:
        machine.up("--group", "pool=0", "--group", "rest=1")
        yield machine


@pytest.fixture(params=[PROCESS, AIO_PROCESS], ids=["sync", "aio"])
def processes(request, machine) -> tuple[Running, Running]:
    """Two processes of job a that hold the group, the first of them as the lease's owner; both were told so."""
    first, second = machine.start("-c", PROCESS), machine.start("-c", request.param)
    first.say("acquire")
    first.wait_for("granted True")
    second.say("acquire")
    first.wait_for("shared: owner True, attached 2")
    # The notice comes on the session's stream, the grant is the reply of Acquire: either may be first.
    told, granted = "shared: owner False, attached 2", "granted True"
    if told in second.wait_for("d"):
        second.wait_for(granted)
    else:
        second.wait_for(told)
    return first, second


@pytest.fixture
def next_one(machine, processes, background):
    """Job b, which waits for the group; `result` returns when it was granted."""
    client = TimeSliceOrchestratorClient(machine.address, "b", "pool")
    waiting = background(client.acquire, timeout_sec=50)
    yield waiting, client
    client.close()


def test_process_that_shares_gives_back_only_its_share(processes, next_one):
    first, second = processes
    waiting, client = next_one
    second.say("release")
    second.wait_for("released")
    first.wait_for("shared: owner True, attached 1")
    assert client.group_reply().group.lease.job_id == "a"
    assert waiting.is_running()
    first.say("release")
    first.wait_for("released")
    assert waiting.result().success


def test_share_that_is_taken_again_is_lost_like_the_first(processes, next_one):
    first, second = processes
    waiting, _ = next_one
    second.say("release")
    second.wait_for("released")
    second.say("acquire")
    second.wait_for("granted True")
    first.say("release")
    first.wait_for("released")
    assert waiting.result().success
    second.wait_for("lost: token 1, will resume False")
    second.say("release")
    second.wait_for("raised: lease 1 of job 'a' on group 'pool' was lost")


def test_group_is_handed_on_when_the_owner_gives_it_back_and_the_other_is_told(processes, next_one):
    first, second = processes
    waiting, client = next_one
    first.say("release")
    first.wait_for("released")
    assert waiting.result().success
    assert client.group_reply().group.lease.job_id == "b"
    second.wait_for("lost: token 1, will resume False")
    second.say("release")
    second.wait_for("raised: lease 1 of job 'a' on group 'pool' was lost")


def test_process_that_shares_and_ends_does_nothing_to_the_owners_lease(processes, next_one):
    first, second = processes
    waiting, _ = next_one
    second.process.stdin.close()  # It closes its client, which gives its share back.
    assert second.process.wait(30) == 0
    first.wait_for("shared: owner True, attached 1")
    assert waiting.is_running()
    first.say("release")
    first.wait_for("released")
    assert waiting.result().success


def test_both_are_told_by_a_log_line_too(processes):
    for process in processes:
        process.process.stdin.close()
        assert process.process.wait(30) == 0
        process.end()
        [line] = [line for line in process.errors if "is held by 2 process(es)" in line]
        assert line.startswith("lease 1 of job a on group pool is held by 2 process(es): ")
