"""Jobs that save themselves: each command is carried out once, and the agent hears what came of it."""

import asyncio
import logging
import os
import threading

import grpc
import pytest

import vllm
from fake_agent import FakeAgent
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice._processes import start_time
from timeslice.snapshot_agent import register_workload

OFFLOAD = pb2.SnapshotCommand(mode=pb2.SUSPEND_MODE_OFFLOAD, tags=["weights"])
DISCARD = pb2.SnapshotCommand(mode=pb2.SUSPEND_MODE_DISCARD)
RESTORE = pb2.RestoreCommand(tags=["weights"])


@pytest.fixture
def agent(short_dir):
    server = FakeAgent(f"unix:{short_dir}/a.sock")
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch):
    monkeypatch.setattr("timeslice.snapshot_agent.workload.FIRST_BACKOFF_S", 0.01)


class Job:
    """Remembers its calls; may be slow, and may fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.threads: set[threading.Thread] = set()
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: BaseException | None = None

    def snapshot(self, mode, tags):
        self._call("snapshot", mode, tags)

    def restore(self, tags):
        self._call("restore", tags)

    def _call(self, *call):
        self.calls.append(call)
        self.threads.add(threading.current_thread())
        self.begun.set()
        assert self.may_end.wait(15)
        if self.error is not None:
            raise self.error


def in_the_middle_of_a_snapshot(agent):
    """A registered job, whose snapshot has begun with command c1 and ends when it may."""
    job = Job()
    job.may_end.clear()
    handle = register_workload(agent.address, "a", "g", job)
    agent.send("c1", snapshot=OFFLOAD)
    assert job.begun.wait(10)
    return job, handle


def test_callbacks_are_called_as_the_agent_commands(agent):
    job = Job()
    handle = register_workload(agent.address, "a", "g", on_snapshot=job.snapshot, on_restore=job.restore)
    [seen] = agent.registered
    assert (seen.job_id, seen.group, list(seen.pids)) == ("a", "g", [])
    assert list(seen.capabilities.supported_modes) == [pb2.SUSPEND_MODE_OFFLOAD, pb2.SUSPEND_MODE_DISCARD]
    assert seen.capabilities.default_mode == pb2.SUSPEND_MODE_OFFLOAD
    assert (seen.instance.pid, seen.instance.start_time) == (os.getpid(), start_time(os.getpid()))
    assert (seen.instance.returns, seen.instance.saved, seen.instance.running_command_id) == (False, False, "")
    for number, command in enumerate(({"snapshot": OFFLOAD}, {"restore": RESTORE}, {"snapshot": DISCARD})):
        agent.send(f"c{number}", **command)
        assert agent.result(f"c{number}") == pb2.CommandResult(command_id=f"c{number}", ok=True)
    assert job.calls == [("snapshot", "offload", ["weights"]), ("restore", ["weights"]), ("snapshot", "discard", [])]
    assert len(job.threads) == 1
    [thread] = job.threads
    assert thread.daemon
    handle.close()
    assert not thread.is_alive()
    assert agent.half_closed == 1


def test_registration_says_what_the_workload_can_do_and_holds(agent):
    job = Job()
    handle = register_workload(
        agent.address, "a", "g", job, supported_modes=["discard"], default_mode="discard", tags=["kv_cache"],
        pids=[os.getpid()],
    )  # fmt: skip
    [seen] = agent.registered
    assert list(seen.capabilities.supported_modes) == [pb2.SUSPEND_MODE_DISCARD]
    assert seen.capabilities.default_mode == pb2.SUSPEND_MODE_DISCARD
    assert list(seen.capabilities.tags) == ["kv_cache"]
    assert list(seen.pids) == [os.getpid()]
    agent.send("wrong", snapshot=OFFLOAD)
    refused = agent.result("wrong")
    assert not refused.ok
    assert "supported are discard" in refused.error
    agent.send("unspecified", snapshot=pb2.SnapshotCommand())
    assert agent.result("unspecified").ok
    assert job.calls == [("snapshot", "discard", [])]
    handle.close()


@pytest.mark.parametrize("error", [ValueError("no room"), SystemExit(3), KeyboardInterrupt()])
def test_callback_that_raises_is_told_and_the_next_command_is_carried_out(agent, error, caplog):
    job = Job()
    job.error = error
    with caplog.at_level(logging.WARNING, "timeslice"):
        handle = register_workload(agent.address, "a", "g", job)
        agent.send("c1", snapshot=OFFLOAD)
        failed = agent.result("c1")
    assert not failed.ok
    assert failed.error == f"{type(error).__name__}: {error}"
    assert "job a: the snapshot callback failed" in caplog.text
    job.error = None
    agent.send("c2", snapshot=OFFLOAD)
    assert agent.result("c2").ok
    handle.close()


def test_unknown_command_is_refused(agent):
    job = Job()
    handle = register_workload(agent.address, "a", "g", job)
    agent.send("c1")
    assert "does not know the command" in agent.result("c1").error
    handle.close()


def test_command_that_comes_twice_is_carried_out_once_and_answered_twice(agent):
    job = Job()
    handle = register_workload(agent.address, "a", "g", job)
    agent.send("c1", snapshot=OFFLOAD)
    agent.result("c1")
    agent.send("c1", snapshot=OFFLOAD)
    agent.wait_until(lambda: len(agent.results) == 2)
    assert agent.results[0] == agent.results[1]
    assert len(job.calls) == 1
    handle.close()


def test_command_that_comes_again_while_it_is_carried_out_is_not_begun_anew(agent):
    job, handle = in_the_middle_of_a_snapshot(agent)
    agent.send("c1", snapshot=OFFLOAD)
    agent.stop()
    agent.start()
    agent.wait_until(lambda: len(agent.registered) == 2)
    agent.send("c1", snapshot=OFFLOAD)
    job.may_end.set()
    assert agent.result("c1").ok
    agent.send("c2", restore=RESTORE)
    assert agent.result("c2").ok
    assert [call[0] for call in job.calls] == ["snapshot", "restore"]
    handle.close()


def test_command_under_way_goes_on_while_the_agent_restarts_and_its_result_reaches_the_new_one(agent):
    job, handle = in_the_middle_of_a_snapshot(agent)
    agent.stop()
    agent.start()
    agent.wait_until(lambda: len(agent.registered) == 2)
    first, second = (register.instance for register in agent.registered)
    assert second.id == first.id
    assert second.returns
    assert second.running_command_id == "c1"
    assert not second.saved
    job.may_end.set()
    assert agent.result("c1").ok
    handle.close()


def test_result_that_nobody_was_there_to_hear_is_told_with_the_next_registration(agent):
    job, handle = in_the_middle_of_a_snapshot(agent)
    agent.stop()
    second, may_end = threading.Event(), threading.Event()
    job.restore = lambda tags: (second.set(), may_end.wait(15))
    handle._commands.take(pb2.AgentCommand(command_id="c2", restore=RESTORE))
    job.may_end.set()
    assert second.wait(10), "the second begins when the result of the first stands"
    agent.start()
    agent.wait_until(lambda: len(agent.registered) == 2)
    again = agent.registered[1].instance
    assert list(again.results) == [pb2.CommandResult(command_id="c1", ok=True)]
    assert (again.running_command_id, again.saved) == ("c2", True)
    may_end.set()
    assert agent.result("c2").ok
    handle.close()


def test_workload_that_was_replaced_does_not_come_back(agent, caplog):
    job = Job()
    with caplog.at_level(logging.WARNING, "timeslice"):
        handle = register_workload(agent.address, "a", "g", job)
        agent.end_channel(grpc.StatusCode.ABORTED, "another workload has registered")
        handle._thread.join(10)
    assert not handle._thread.is_alive()
    assert "job a is not asked to save itself any more: another workload has registered" in caplog.text
    assert len(agent.registered) == 1
    handle.close()


def test_closing_waits_for_the_callback_under_way(agent, background):
    job, handle = in_the_middle_of_a_snapshot(agent)
    closing = background(handle.close, timeout=15)
    assert closing.is_running()
    job.may_end.set()
    closing.result()
    assert agent.result("c1").ok
    assert agent.half_closed == 1
    handle.close()


def test_closing_does_not_wait_for_ever(agent):
    job, handle = in_the_middle_of_a_snapshot(agent)
    handle.close(timeout=0.05)
    agent.wait_until(lambda: agent.channels == 0)
    job.may_end.set()


def test_handle_may_be_closed_by_its_own_callback(agent):
    job = Job()
    handle = register_workload(
        agent.address, "a", "g", on_snapshot=lambda mode, tags: handle.close(), on_restore=job.restore
    )
    agent.send("c1", snapshot=OFFLOAD)
    agent.wait_until(lambda: agent.channels == 0)


def test_coroutines_run_on_the_loop_that_was_running_at_the_registration(agent):
    engine = vllm.AsyncLLM()

    async def main():
        handle = register_workload(agent.address, "a", "g", engine)
        assert list(agent.registered[0].capabilities.tags) == ["weights", "kv_cache"]
        for number, command in enumerate(({"snapshot": OFFLOAD}, {"restore": RESTORE})):
            agent.send(f"c{number}", **command)
            assert (await asyncio.to_thread(agent.result, f"c{number}")).ok
        assert engine.calls == [("sleep", 1), ("wake_up", ["weights"])]
        assert set(engine.loops) == {asyncio.get_running_loop()}
        await asyncio.to_thread(handle.close)

    asyncio.run(main())


def test_coroutines_of_a_job_without_a_loop_run_on_one_of_their_own(agent):
    engine = vllm.AsyncLLM()
    handle = register_workload(agent.address, "a", "g", engine)
    agent.send("c1", snapshot=DISCARD)
    assert agent.result("c1").ok
    assert engine.calls == [("sleep", 2)]
    handle.close()


def test_loop_that_has_ended_since_is_said(agent):
    engine = vllm.AsyncLLM()

    async def main():
        return register_workload(agent.address, "a", "g", engine)

    handle = asyncio.run(main())
    agent.send("c1", snapshot=OFFLOAD)
    assert "event loop that was running at the registration is closed" in agent.result("c1").error
    handle.close()


def test_blocking_engine_is_put_to_sleep_and_woken_up(agent):
    engine = vllm.LLM()
    handle = register_workload(agent.address, "a", "g", workload=engine)
    agent.send("c1", snapshot=OFFLOAD)
    assert agent.result("c1").ok
    assert engine.awake == set()
    agent.send("c2", restore=pb2.RestoreCommand(tags=["weights", "kv_cache"]))
    assert agent.result("c2").ok
    assert engine.awake == {"weights", "kv_cache"}
    handle.close()
