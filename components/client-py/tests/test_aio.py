"""What only the asyncio face has: cancellation, tasks, event loops."""

import asyncio
import logging
import os
import subprocess
import sys

import pytest

import timeslice
from timeslice.aio import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError


@pytest.fixture
async def client(orchestrator):
    async with TimeSliceOrchestratorClient(orchestrator.address, "a", "trainers") as client:
        yield client
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("timeslice ")] == []


async def until(orchestrator, condition) -> None:
    """Until something has come about at the fake, whose threads must not be waited for on the loop."""
    await asyncio.to_thread(orchestrator.wait_until, condition)


def waiting(orchestrator, group: str = "trainers") -> int:
    return len(orchestrator.groups[group].waiting)


async def test_row_2_cancelled_acquire_leaves_the_queue_at_once(orchestrator, client):
    orchestrator.hold("trainers")
    task = asyncio.create_task(client.acquire())
    await until(orchestrator, lambda: waiting(orchestrator) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(orchestrator, lambda: waiting(orchestrator) == 0)
    orchestrator.free("trainers")
    assert orchestrator.holder("trainers") is None
    assert (await client.acquire()).success


async def test_acquire_cut_off_by_wait_for_leaves_the_queue(orchestrator, client):
    orchestrator.hold("trainers")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.acquire(), 0.3)
    await until(orchestrator, lambda: waiting(orchestrator) == 0)


async def test_grant_that_crosses_a_cancellation_is_given_back(orchestrator, client):
    orchestrator.hold_answers("Acquire")
    task = asyncio.create_task(client.acquire())
    await until(orchestrator, lambda: orchestrator.holder("trainers") == "a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(orchestrator, lambda: orchestrator.holder("trainers") is None)
    assert [request.fencing_token for request in orchestrator.seen("Yield")] == [1]


async def test_cancelled_block_gives_the_group_back(orchestrator, client):
    entered = asyncio.Event()

    async def phase() -> None:
        async with client.on_accelerators():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(phase())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert orchestrator.holder("trainers") is None


async def test_cancellation_while_the_group_is_given_back_does_not_interrupt_that(orchestrator, client):
    answers = orchestrator.hold_answers("Yield")

    async def phase() -> None:
        async with client.on_accelerators():
            pass

    task = asyncio.create_task(phase())
    await until(orchestrator, lambda: bool(orchestrator.seen("Yield")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answers.set()
    await client.close()
    # Neither asked for again nor given back by `close`: the one call came through.
    assert len(orchestrator.seen("Yield")) == 1


async def test_decorated_coroutine_function_keeps_its_name_and_result(orchestrator, client):
    @client.on_accelerators(group_id="samplers")
    async def phase(number: int) -> int:
        """Doc."""
        assert orchestrator.holder("samplers") == "a"
        return number + 1

    assert (phase.__name__, phase.__doc__) == ("phase", "Doc.")
    assert [await phase(1), await phase(2)] == [2, 3]
    assert orchestrator.holder("samplers") is None


async def test_plain_function_is_refused_by_the_decorator(client):
    def plain() -> None:
        pass

    with pytest.raises(TypeError, match="is no coroutine function; for plain functions"):
        client.on_accelerators()(plain)


async def test_calls_of_many_tasks_share_one_session(orchestrator, client):
    await asyncio.gather(client.acquire(), client.acquire(group_id="samplers"), client.acquire())
    assert len(orchestrator.sessions) == 1
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert names.count("timeslice session a") == 1


async def test_server_without_sessions_is_understood_every_time(orchestrator):
    """It ends the session's stream while that is being written to, of which grpc at times reports only an own error."""
    orchestrator.knows_sessions = False
    for number in range(100):
        async with TimeSliceOrchestratorClient(orchestrator.address, f"job-{number}", "trainers") as client:
            await client.acquire(timeout_sec=20)
            await client.release()
    assert orchestrator.groups["trainers"].last_token == 100


async def test_use_on_another_event_loop_says_so(orchestrator, client):
    await client.acquire()

    def elsewhere() -> None:
        for call in (client.release, client.list_groups, client.close):
            with pytest.raises(OrchestratorError, match="belongs to another event loop"):
                asyncio.run(call())

    await asyncio.to_thread(elsewhere)
    assert (await client.release()).success


def test_client_may_be_made_before_there_is_an_event_loop(orchestrator):
    client = TimeSliceOrchestratorClient(orchestrator.address, "a", "trainers")

    async def main() -> None:
        async with client, client.on_accelerators():
            assert orchestrator.holder("trainers") == "a"

    asyncio.run(main())
    assert orchestrator.holder("trainers") is None


def test_event_loop_that_ends_first_gives_back_what_is_held(orchestrator, caplog):
    async def main() -> None:
        await TimeSliceOrchestratorClient(orchestrator.address, "a", "trainers").acquire()

    with caplog.at_level(logging.WARNING, "timeslice"):
        asyncio.run(main())
    assert orchestrator.holder("trainers") is None
    assert "client closed while job a holds group trainers: giving it back" in caplog.text


async def test_closed_client_that_was_never_used_is_closed(orchestrator):
    client = TimeSliceOrchestratorClient(orchestrator.address, "a", "trainers")
    await client.close()
    with pytest.raises(OrchestratorError, match="was closed"):
        await client.acquire()


async def test_calls_of_both_faces_have_the_same_parameters():
    import inspect

    for plain, awaited in (
        (timeslice.TimeSliceOrchestratorClient, timeslice.aio.TimeSliceOrchestratorClient),
        (timeslice.SnapshotAgentClient, timeslice.aio.SnapshotAgentClient),
    ):
        names = [n for n in dir(plain) if not n.startswith("_") and inspect.isfunction(getattr(plain, n))]
        assert "close" in names
        for name in ["__init__", *names]:
            one, other = (inspect.signature(getattr(cls, name)) for cls in (plain, awaited))
            assert [(p.name, p.kind, p.default) for p in one.parameters.values()] == [
                (p.name, p.kind, p.default) for p in other.parameters.values()
            ], name


FORK = """
import asyncio, os, signal, sys
from timeslice.aio import TimeSliceOrchestratorClient
import timeslice

ADDRESS = {address!r}

def child():
    signal.alarm(15)
    try:
        timeslice.TimeSliceOrchestratorClient(ADDRESS, "child", "samplers").acquire()
    except Exception as err:
        assert "asyncio side does not survive a fork" in str(err) and "spawn" in str(err), err
        try:
            asyncio.new_event_loop().run_until_complete(client.release())
        except Exception as err:
            assert "does not survive a fork" in str(err), err
            os._exit(0)
    os._exit(3)

async def main():
    global client
    async with TimeSliceOrchestratorClient(ADDRESS, "a", "trainers") as client, client.on_accelerators():
        pid = os.fork()
        if pid == 0:
            asyncio._set_running_loop(None)
            child()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # grpc itself may crash in such a child, or end it (1.81.0 does): that is what the warning says.
        assert code in (0, os.EX_USAGE, -signal.SIGSEGV, -signal.SIGABRT), code
asyncio.run(main())
"""


def test_child_forked_while_an_asyncio_client_is_open_is_told_and_the_parent_goes_on(orchestrator):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK.format(address=orchestrator.address)],
        env={k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "forks while an asyncio client is open" in done.stderr
    assert [r.job_id for r in orchestrator.seen("Yield")] == ["a"]
