"""The orchestrator alone on loopback, over an agent that knows only the contract below number 100.

The agent is a process of its own with stubs of that contract; it behaves as llm-d's does (llmd_agent.py). Such an agent
cannot lock: whoever has yielded is trusted not to touch the device until its context is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmd_stubs
from calls import SWITCHING, Caller, has_condition, waiting
from llmd_agent_process import LlmdAgent
from machine import Installation
from timeslice.orchestrator.exceptions import OrchestratorError
from timeslice.orchestrator.types import AcquireResult
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

UNKNOWN = pb.GroupStatus.STATE_UNKNOWN


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llmd_stubs.generate(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def agent(stubs: Path) -> Iterator[LlmdAgent]:
    yield from started(stubs)


@pytest.fixture
def other_agent(stubs: Path) -> Iterator[LlmdAgent]:
    yield from started(stubs)


def started(stubs: Path) -> Iterator[LlmdAgent]:
    agent = LlmdAgent(stubs)
    agent.start()
    yield agent
    agent.kill()


@pytest.fixture
def alone(tmp_path: Path, agent: LlmdAgent) -> Iterator[Installation]:
    with installation(tmp_path, f"n0={agent.address},group=g:0") as made:
        yield made


def installation(folder: Path, *agents: str) -> Installation:
    """The orchestrator alone, on loopback."""
    flags = ("--call-timeout-s", "0.5", "--unreachable-after-s", "1", "--backoff-s", "0.05")
    return Installation(folder, "127.0.0.1:0", list(agents), flags)


def run(made: Installation, agent: LlmdAgent, job: str) -> None:
    """The job's processes start to use the device; returns when the orchestrator has seen that."""
    agent.tell("set", job, "RUNNING")
    made.sees(job, "RUNNING")


def start_anew(made: Installation, agent: LlmdAgent, **jobs: str) -> None:
    """The agent is killed, its loss noticed, and it comes back with no memory."""
    agent.kill()
    made.wait_for(has_condition("Unreachable"))
    agent.start(**jobs)


def hand_over(made: Installation, holder: Any, other: Any) -> AcquireResult:
    """The holder yields while the other one waits; what that one's acquire returned."""
    next_one = Caller(other.acquire, timeout_sec=20)
    made.wait_for(waiting(other.job_id))
    holder.release()
    return next_one.wait()  # type: ignore[no-any-return]


def in_the_middle_of_a_save(alone: Installation, agent: LlmdAgent, take_s: float) -> Caller:
    """Job a has yielded, and its save, which takes `take_s` seconds, has begun; returns job b's acquire."""
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    agent.tell("take", take_s)
    next_one = Caller(b.acquire, timeout_sec=40)
    alone.wait_for(waiting("b"))
    a.release()
    agent.next("began", kind="snapshot", job="a")
    return next_one


def test_two_jobs_take_turns(alone: Installation, agent: LlmdAgent) -> None:
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    assert not hand_over(alone, a, b).context_restored
    assert agent.next("ended", kind="snapshot", job="a")["running"] == []
    run(alone, agent, "b")
    for holder, other in ((b, a), (a, b), (b, a)):
        assert hand_over(alone, holder, other).context_restored
        assert agent.next("ended", kind="snapshot", job=holder.job_id)["running"] == []
        assert agent.next("ended", kind="restore", job=other.job_id)["running"] == [other.job_id]
    status = alone.status().group
    assert status.handoffs_total == 4
    assert list(status.lease.accelerators) == ["n0/0"]
    assert not status.conditions


def test_end_of_an_operation_is_asked_for_quickly_at_first_and_then_once_a_second(
    alone: Installation, agent: LlmdAgent
) -> None:
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    agent.tell("take", 3.0)
    hand_over(alone, a, b)
    asked_s = agent.next("ended", kind="snapshot", job="a")["asked_s"]
    assert sum(at_s < 1.0 for at_s in asked_s) >= 2, asked_s
    assert len(asked_s) <= 8, asked_s  # 0.02, 0.06, 0.14, 0.3, 0.62, 1.26, 2.26, 3.26


def test_job_whose_save_fails_is_faulted_and_the_next_one_served(alone: Installation, agent: LlmdAgent) -> None:
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    agent.tell("fail", "snapshot")
    assert hand_over(alone, a, b).success
    assert has_condition("Faulted", "a")(alone.status().group)
    with pytest.raises(OrchestratorError, match="faulted") as refused:
        a.acquire(timeout_sec=10)
    assert refused.value.code == "FAILED_PRECONDITION"


def test_job_that_needs_the_room_of_one_whose_save_failed_is_blocked_by_it(
    alone: Installation, agent: LlmdAgent
) -> None:
    a, b = alone.client("a"), alone.client("b")
    b.acquire(timeout_sec=10)
    run(alone, agent, "b")
    hand_over(alone, b, a)
    run(alone, agent, "a")
    agent.tell("fail", "snapshot")
    next_one = Caller(b.acquire, timeout_sec=20)
    alone.wait_for(waiting("b"))
    a.release()
    alone.wait_for(has_condition("Blocked", "a"))
    assert next_one.blocks
    agent.tell("set", "a", "IDLE")  # its processes were ended
    assert next_one.wait().context_restored


def test_job_whose_restore_fails_is_refused_and_others_go_on(alone: Installation, agent: LlmdAgent) -> None:
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    hand_over(alone, a, b)
    agent.tell("fail", "restore")
    with pytest.raises(OrchestratorError, match="faulted"):
        hand_over(alone, b, a)
    assert b.acquire(timeout_sec=20).success


def test_row_49_saved_job_that_a_restarted_agent_shows_as_idle_is_not_granted_until_that_is_explained(
    alone: Installation, agent: LlmdAgent
) -> None:
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    hand_over(alone, a, b)
    run(alone, agent, "b")
    start_anew(alone, agent, a="IDLE", b="IDLE")
    run(alone, agent, "b")
    alone.sees("a", "TRANSITIONING")
    next_one = Caller(a.acquire, timeout_sec=40)
    alone.wait_for(waiting("a"))
    b.release()
    agent.next("ended", kind="snapshot", job="b")
    alone.wait_for(has_condition("Unexplained", "a"))
    alone.sees("b", "SAVED")
    assert next_one.blocks
    assert alone.status().group.group_state == SWITCHING
    agent.tell("set", "a", "RUNNING")  # new processes of the job are there
    assert not next_one.wait().context_restored


def test_row_49_operator_may_explain_it(alone: Installation, agent: LlmdAgent) -> None:
    a, b = alone.client("a"), alone.client("b")
    a.acquire(timeout_sec=10)
    run(alone, agent, "a")
    hand_over(alone, a, b)
    start_anew(alone, agent, a="IDLE")
    alone.wait_for(has_condition("Unexplained", "a"))
    next_one = Caller(a.acquire, timeout_sec=40)
    alone.wait_for(waiting("a"))
    b.release()
    alone.wait_for(lambda group: group.group_state == SWITCHING)
    assert next_one.blocks
    with alone.stub() as stub:
        stub.Evict(pb.EvictRequest(group_id="g", job_id="a", action=pb.EvictRequest.ACTION_CLEAR_FAULT), timeout=5)
    assert next_one.wait().success


def test_agent_that_starts_anew_in_the_middle_of_a_save_is_not_asked_for_ever(
    alone: Installation, agent: LlmdAgent
) -> None:
    next_one = in_the_middle_of_a_save(alone, agent, take_s=600)
    start_anew(alone, agent, a="IDLE")
    agent.tell("set", "a", "RUNNING")  # the driver had not saved it, and the agent has found its processes again
    assert next_one.wait().success
    assert agent.next("ended", kind="snapshot", job="a")["ok"]


def test_job_of_which_a_restarted_agent_cannot_tell_whether_it_was_saved_is_not_passed_over(
    alone: Installation, agent: LlmdAgent
) -> None:
    next_one = in_the_middle_of_a_save(alone, agent, take_s=600)
    start_anew(alone, agent, a="IDLE")
    alone.wait_for(has_condition("Unexplained", "a"))
    assert next_one.blocks
    with alone.stub() as stub:
        stub.Evict(pb.EvictRequest(group_id="g", job_id="a", action=pb.EvictRequest.ACTION_CLEAR_FAULT), timeout=5)
    assert next_one.wait().success


def test_orchestrator_that_is_killed_in_the_middle_of_a_handoff_goes_on_with_it(
    alone: Installation, agent: LlmdAgent
) -> None:
    next_one = in_the_middle_of_a_save(alone, agent, take_s=1.0)
    alone.restart()
    assert next_one.wait().success
    assert agent.next("ended", kind="snapshot", job="a")["running"] == []


def test_row_40_agent_that_takes_calls_and_never_answers_delays_only_its_own_group(
    tmp_path: Path, agent: LlmdAgent, other_agent: LlmdAgent
) -> None:
    agent.tell("mute", True)
    agents = [f"n0={agent.address},group=g", f"n1={other_agent.address},group=h"]
    with installation(tmp_path, *agents) as made:
        first = Caller(made.client("a").acquire, timeout_sec=40)
        made.wait_for(lambda group: group.group_state == UNKNOWN)
        assert has_condition("Unreachable")(made.status().group)
        clients = [made.client(job, "h") for job in "ab"]
        clients[0].acquire(timeout_sec=10)
        other_agent.tell("set", "a", "RUNNING")
        made.sees("a", "RUNNING", "h")
        next_one = Caller(clients[1].acquire, timeout_sec=10)
        made.wait_for(waiting("b"), "h")
        clients[0].release()
        assert next_one.wait().success
        assert first.blocks
        agent.tell("mute", False)
        assert first.wait().success
